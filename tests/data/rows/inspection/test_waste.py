"""What runs of rows cost."""

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from rankwise.data.rows import write_sharded
from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.inspection.description import decode_factor
from rankwise.data.rows.matrices.matrix import open_matrix
from rankwise.data.rows.matrices.stacks import stack_matrices
from rankwise.data.store import BoxReader
from rankwise.testing.stores.small_rows import small_anndata, write_csr


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


@pytest.mark.parametrize(
    ("chunk", "run", "most"), [(100_000, 1, 480), (100_000, 32, 15), (1500, 8, 32), (700, 1000, 1.1)]
)
def test_long_chunks_are_decoded_whole(tmp_path, chunk, run, most):
    """A matrix in one chunk costs all of it for any run; the prediction is what is decoded, within a quarter."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    matrix = sp.csr_matrix(np.ones((480, 6), "f4"))
    write_csr(group, "X", matrix, chunk=min(chunk, matrix.nnz), shard=min(chunk, matrix.nnz))
    with BoxReader(threads=1, cache=0) as reader:
        held = open_matrix(f"{tmp_path}/a.zarr/X", reader)
        stack = stack_matrices([held])
        plans = [stack.plan(np.arange(start, min(start + run, 480)), reader) for start in range(0, 480, run)]
        decoded = sum(plan.boxes[0].decode_bytes for plan in plans) / matrix.data.nbytes
    assert decode_factor(held, run) == pytest.approx(decoded, rel=0.25)
    assert decode_factor(held, run) == pytest.approx(most, rel=0.35)
