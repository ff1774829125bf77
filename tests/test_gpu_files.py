"""What is written for machines with a GPU and cannot run here: it is at least found, marked and rehearsed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


COLLECT = """
import json, sys
import pytest
for selection in json.loads(sys.argv[1]):
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *selection, "tests/gpu"])
    print("\\n---")
"""


def collected(*selections):
    """The tests below tests/gpu that each selection finds."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, json.dumps(selections)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return [[line for line in said.splitlines() if "::" in line] for said in done.stdout.split("\n---\n")[:-1]]


def test_every_test_for_a_gpu_is_marked():
    """`make test-gpu` finds all of them, and the usual run none."""
    marked, whole, usual = collected(["-m", "gpu"], ["-m", "gpu or not gpu"], [])
    assert len(marked) == len(whole) > 15
    assert usual == []


def test_the_benchmark_runs_without_a_gpu():
    """`bench/gpu.py --device cpu --quick`: every reader gives every image once, and a line is printed for each."""
    done = subprocess.run(
        [sys.executable, "bench/gpu.py", "--device", "cpu", "--quick", "--step-ms", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for reader in (
        "limit",
        "SampleLoader, cast on the device",
        "SampleLoader, cast on the CPU",
        "DataLoader, 1 workers",
    ):
        assert reader in done.stdout
    assert "no GPU: a rehearsal" in done.stdout
