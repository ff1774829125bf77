"""Chunks of CSR matrices that are not in the store: left out as nothing but zeros, or lost."""

from pathlib import Path

import anndata
import numpy as np
import pytest
import zarr

from rankwise.data.order import Order
from rankwise.data.rows import Loader, RowSource
from rankwise.errors import SampleError
from rankwise.testing.small_rows import random_csr, write_anndata

NUM_ROWS = 40


def store(place, *, shards):
    """A store as zarr-python writes it, without the chunks of a stretch of stored zeros; and its rows."""
    matrix = random_csr(NUM_ROWS, 30, seed=2, density=0.5)
    matrix.data[100:200] = 0
    write_anndata(anndata.AnnData(matrix), place)
    group = zarr.open_group(place, mode="r+", use_consolidated=False)
    for name, values in (("data", matrix.data), ("indices", matrix.indices)):
        group["X"].create_array(name, data=values, chunks=(20,), shards=shards, overwrite=True)
    return matrix


@pytest.mark.parametrize("options", [{}, {"dense": True}, {"genes": [28, 3, 4]}], ids=["sparse", "dense", "genes"])
def test_zeros_that_a_shard_leaves_out_are_zeros(tmp_path, options):
    """The index of a shard says so, which a file that is not there cannot: then rows are lost."""
    place = str(tmp_path / "a.zarr")
    whole = store(place, shards=(80,)).toarray()
    source = RowSource(place, **options)
    order = Order(source, batch_size=7)
    seen = []
    for (batch,) in Loader(source, order=order, device=None):
        rows = batch["X"].toarray() if not options else batch["X"]
        np.testing.assert_array_equal(rows, whole[batch.ids][:, options.get("genes", slice(None))])
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(NUM_ROWS))
    Path(place, "X/data/c/1").unlink()
    with pytest.raises(SampleError, match=r"X/data (is|are) not in the store"), RowSource(place, **options) as again:
        list(Loader(again, order=order, device=None))


def test_of_files_of_one_chunk_that_cannot_be_told(tmp_path):
    """Rows whose elements lie in no file are damaged; others arrive."""
    place = str(tmp_path / "a.zarr")
    matrix = store(place, shards=None)
    lost = set(np.repeat(np.arange(NUM_ROWS), np.diff(matrix.indptr))[100:200].tolist())
    seen = []
    for (batch,) in Loader(place, order=Order(NUM_ROWS, batch_size=7), device=None, on_bad_sample=len(lost)):
        np.testing.assert_array_equal(batch["X"].toarray(), matrix[batch.ids].toarray())
        seen += batch.ids.tolist()
    assert sorted(seen) == sorted(set(range(NUM_ROWS)) - lost)
