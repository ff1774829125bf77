"""The comparison of sample readers on tiny data: it runs, all give the same samples, and it says what it saw."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "bench" / "samples.py"


def test_it_runs(tmp_path):
    """Every case gives CPU and wall time of every reader in every round, and a table."""
    words = ("--quick", "--folder", str(tmp_path), "--readers", "ours", "rows", "--json", str(tmp_path / "found.json"))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "found.json").read_text())["cases"]
    assert len(cases) == 5
    for times in cases.values():
        assert {name: {key: len(spent) for key, spent in of.items()} for name, of in times.items()} == {
            name: {"cpu_us": 2, "wall_us": 2} for name in ("ours", "rows")
        }
    assert done.stdout.count("| ArraySource + SampleLoader |") == 5
