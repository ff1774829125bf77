"""The comparison of readers on a tiny data set: it runs, all readers return the same bytes, and it says what it saw."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "bench" / "crops.py"


def run(tmp_path, *words):
    command = [sys.executable, str(SCRIPT), "--quick", "--folder", str(tmp_path / "sets"), "--threads", "1", *words]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home")}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)


def test_it_runs(tmp_path):
    """Readers and floor give numbers, and a verdict on each goal."""
    found = tmp_path / "found.json"
    readers = ("--readers", "floor", "ours", "zarr")
    words = ("--codecs", "zstd-1", *readers, "--parts", "compare", "--json", str(found))
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    facts = json.loads(found.read_text())
    [comparison] = facts["compare"]
    assert comparison["failed"] == {}
    assert {name: len(spent) for name, spent in comparison["cpu_s"].items()} == {"floor": 2, "ours": 2, "zarr": 2}
    assert all(verdict["goal"] and verdict["seen"] for verdict in facts["verdicts"])
    assert any("share of the floor" in verdict["goal"] for verdict in facts["verdicts"])
    assert "Goals:" in done.stdout


@pytest.mark.slow
def test_all_parts_run(tmp_path):
    """The first batch of a new process, the waiting of a consumer and the single parts give numbers and verdicts."""
    found = tmp_path / "found.json"
    done = run(tmp_path, "--codecs", "zstd-1", "--parts", "sharing", "steady", "fresh", "wait", "--json", str(found))
    assert done.returncode == 0, done.stderr
    facts = json.loads(found.read_text())
    assert facts["wait"]["batch_s"] > 0
    assert {verdict["goal"].split(",")[0] for verdict in facts["verdicts"]} >= {"first batch"}


def test_other_bytes_are_not_timed(tmp_path):
    """A reader that returns something else ends the run."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from _crops import comparison\n"
        "class Fake:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def round(self, *_, **__): return {'digest': [len(self.name)]}\n"
        "found = comparison.Comparison(title='x', task=None, batches=1)\n"
        "comparison._check_equal({'a': Fake('a'), 'b': Fake('b')}, found)\n"
        "print('equal')\n"
        "comparison._check_equal({'a': Fake('a'), 'bb': Fake('bb')}, found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT.parent)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "equal"
    assert done.returncode == 1
    assert "do not return the same bytes" in done.stderr
