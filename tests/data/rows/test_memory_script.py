"""Memory of many rows, measured on a small store: it runs, and each kind of rows is read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "rows_memory.py"
ALL = ("whole", "column", "mask", "split", "split_rows", "balanced")


@pytest.mark.parametrize("cases", [("split",), pytest.param(ALL, marks=pytest.mark.slow)])
def test_it_runs(tmp_path, cases):
    """Rows of a part of a split are read from mid-epoch on, and those of ranks side by side."""
    words = ["--quick", "--folder", tmp_path, "--json", tmp_path / "found.json", "--cases", *cases]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "found.json").read_text())
    assert list(facts["cases"]) == list(cases)
    assert facts["cases"]["split"]["samples"] % 20_000 == 0  # whole donors
    assert [seen["samples"] for seen in facts["ranks"]] == [100_000, 100_000]
    for seen in (*facts["cases"].values(), *facts["ranks"]):
        assert seen["decoded_bytes_per_batch"] > 0
        assert seen["peak_bytes"] >= seen["take_peak_bytes"] >= 0
        assert seen["first_batch_s"] > seen["take_s"]
    assert "| All rows, rank 1 of 2. (100,000) |" in done.stdout
