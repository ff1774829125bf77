"""annbatch itself reads what is written here; wants the interpreter of an environment that has it (Python 3.12)."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rankwise.data.rows import DatasetCollection
from rankwise.testing.stores.small_rows import small_anndata

SCRIPT = Path(__file__).with_name("read_by_annbatch.py")
PYTHON = os.environ.get("RANKWISE_ANNBATCH_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="RANKWISE_ANNBATCH_PYTHON names no interpreter with annbatch")
@pytest.mark.parametrize("align_rows", [True, False])
def test_every_row_arrives_there(tmp_path, align_rows):
    """Both layouts, several datasets: each row of X with its own obs, in annbatch's loader as it is installed."""
    made = small_anndata(300, 40)
    np.save(tmp_path / "rows.npy", made.X.toarray())
    place = tmp_path / "c.zarr"
    DatasetCollection(place).add_adatas([made], rng=0, dataset_size=90, n_obs_per_chunk=16, align_rows=align_rows)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [PYTHON, SCRIPT, place, tmp_path / "rows.npy"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (0, "300 300\n"), done.stderr
