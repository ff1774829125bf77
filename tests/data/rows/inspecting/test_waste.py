"""What runs of rows cost."""

import numpy as np
import pytest

from rankwise.data.rows.datasets import Dataset
from rankwise.data.rows.inspecting import decode_factor
from rankwise.data.rows.matrices import stack_matrices
from rankwise.data.rows.writing import write_sharded
from rankwise.data.store import BoxReader
from rankwise.testing.small_rows import small_anndata


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("run", [4, 16, 24, 48])
def test_the_prediction_is_what_readers_decode(tmp_path, align, run):
    """Chunks touched by all runs of a matrix, times their rows, are what the metadata predicted, within a seventh."""
    made = small_anndata(480, 40)
    write_sharded(tmp_path / "a.zarr", made, n_obs_per_chunk=16, align_rows=align)
    with BoxReader(threads=1, cache=0) as reader:
        matrix = Dataset(tmp_path / "a.zarr", reader).matrix()
        stack = stack_matrices([matrix])
        starts = range(0, 480, run)
        plans = [stack.plan(np.arange(start, start + run), reader) for start in starts]
        touched = sum(plan.boxes[0].num_chunks for plan in plans if plan.boxes)
        empty = sum(not plan.boxes for plan in plans) / len(plans)
    factor = decode_factor(matrix, run)
    assert touched * 16 / 480 == pytest.approx(factor * (1 - empty), rel=0.15)
