"""Damaged stores in processes of their own: an own error or zarr-python's values, never a crash, hang or blow-up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz_reader.py")


def run_fuzz(folder, seed, num):
    """Outcomes by name; fails where the process ends with a signal, after a hang, or with an assertion."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(FUZZ), str(folder), str(seed), str(num)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


def test_damaged_stores(tmp_path):
    """Some 150 damaged chunks, indexes and documents: told, or read as zarr-python reads them."""
    outcomes = run_fuzz(tmp_path, 7, 150)
    assert min(outcomes[kind] for kind in ("chunk", "index", "metadata")) > 10
    assert min(outcomes[kind] for kind in ("equal", "told", "refused")) > 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 115))
def test_damaged_stores_at_length(tmp_path, seed):
    """Tens of thousands of them."""
    outcomes = run_fuzz(tmp_path, seed, 2000)
    assert min(outcomes[kind] for kind in ("equal", "told", "refused")) > 100
