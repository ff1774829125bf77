"""Column numbers that are wider than what batches hold them in."""

import anndata
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec

from rankwise import Order
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.rows.samplers import SequentialSampler
from rankwise.errors import SampleError
from rankwise.testing.stores.small_rows import random_csr, write_anndata

NUM_ROWS, NUM_COLS, BAD = 40, 30, {3, 17, 18}


@pytest.fixture(params=[BloscCodec(), GzipCodec()], ids=["fast", "slow"])
def store(tmp_path, request):
    """A store with columns of 64 bits, of which three rows name one beyond 32 bits; and its rows."""
    matrix = random_csr(NUM_ROWS, NUM_COLS, seed=2, density=0.5)
    place = str(tmp_path / "a.zarr")
    write_anndata(anndata.AnnData(matrix), place)
    columns = matrix.indices.astype(np.int64)
    for row, column in zip(sorted(BAD), (2**31, 2**32 + 1, -(2**40)), strict=True):
        columns[matrix.indptr[row] + 1] = column
    group = zarr.open_group(place, mode="r+", use_consolidated=False)
    group["X"].create_array("indices", data=columns, chunks=(20,), compressors=request.param, overwrite=True)
    return place, matrix.toarray()


@pytest.mark.parametrize("options", [{}, {"dense": True}, {"genes": [28, 3, 4]}], ids=["sparse", "dense", "genes"])
def test_rows_with_far_columns_are_left_out(store, options):
    """They are damaged as those with columns that are only a little too far are; all others arrive."""
    place, whole = store
    source = RowSource(place, **options)
    seen = []
    for (batch,) in OrderedLoader(source, order=Order(source, batch_size=7), device=None, on_bad_sample=len(BAD)):
        rows = batch["X"].toarray() if not options else batch["X"]
        np.testing.assert_array_equal(rows, whole[batch.ids][:, options.get("genes", slice(None))])
        seen += batch.ids.tolist()
    assert sorted(seen) == sorted(set(range(NUM_ROWS)) - BAD)


def test_a_far_column_is_told(store):
    """The error names row and array, and does not ask for another dtype."""
    place, _ = store
    loader = Loader(batch_sampler=SequentialSampler(chunk_size=10, preload_nchunks=1, batch_size=10))
    with pytest.raises(
        SampleError, match=r"row 3 .*X/indices has column numbers outside the matrix, beyond int32: copy or write"
    ) as caught:
        next(iter(loader.use_collection(place)))
    assert caught.value.damage
