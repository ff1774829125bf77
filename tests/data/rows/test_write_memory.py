"""Memory of writing, measured on a small input: it runs, and the rows are written at each budget."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "rows_writing.py"


@pytest.mark.parametrize("budgets", [["1MB"], pytest.param(["1MB", "64MB"], marks=pytest.mark.slow)])
def test_it_runs(tmp_path, budgets):
    """Each budget writes all rows, and its peak is told; nothing is left but the input."""
    words = ["--quick", "--folder", tmp_path, "--json", tmp_path / "found.json", "--budgets", *budgets]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "found.json").read_text())
    assert list(facts["budgets"]) == budgets
    assert [seen["rows"] for seen in facts["budgets"].values()] == [5_000] * len(budgets)
    assert all(seen["peak_bytes"] > 0 for seen in facts["budgets"].values())
    assert all(f"| {budget} | " in done.stdout for budget in budgets)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cells-5000.h5ad", "found.json"]
