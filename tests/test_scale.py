"""bench/scale.py runs, and what rank 0 does for N ranks grows with N and no faster."""

import importlib.util
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench" / "scale.py"


def test_the_meeting_asks_in_proportion_to_the_ranks():
    """Seven questions of rank 0 for each other rank; what a rank reads does not grow with the number of ranks."""
    spec = importlib.util.spec_from_file_location("scale", BENCH)
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    few, many = scale.meeting(64), scale.meeting(1024)
    assert many["rank 0 asks"] <= few["rank 0 asks"] + 7 * (1024 - 64)
    assert many["kB through rank 0"] <= 17 * few["kB through rank 0"]
    assert many["B a rank reads"] <= 1.2 * few["B a rank reads"]


def test_the_quick_numbers():
    """Real processes and contexts of 2 and 4 ranks: every part has its line."""
    command = [sys.executable, str(BENCH), "--quick", "--sizes", "8", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    for part in ("meeting: ", "gloo: connect", "gloo: gather", "agreement: ", "checkpoint: manifest", "restart: "):
        assert f"\n{part}" in done.stdout
