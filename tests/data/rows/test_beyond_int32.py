"""Matrices with more than 2**31 elements: of the store here only the chunks at the end are there, and are read."""

import json

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from rankwise import Order
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.rows.output.sharded import MatrixFormat, create_sparse
from rankwise.data.rows.samplers import RandomSampler
from rankwise.data.store import BoxReader, read_meta
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.small_rows import random_csr, write_anndata

LONG, NUM_LONG, NUM_COLS = 2**30, 3, 40  # rows that nobody reads, before those that are
ROWS = random_csr(60, NUM_COLS, seed=4)
NUMBERS = np.arange(NUM_LONG, NUM_LONG + 60)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("large") / "a.zarr"
    obs = pd.DataFrame({"n": np.arange(NUM_LONG + 60)}, index=[f"cell{k}" for k in range(NUM_LONG + 60)])
    empty = sp.csr_matrix((NUM_LONG + 60, NUM_COLS), dtype="f4")
    write_anndata(anndata.AnnData(X=empty, obs=obs), place)
    group = zarr.open_group(place, mode="r+", use_consolidated=False)
    attributes = dict(group["X"].attrs)
    del group["X"]
    held = group.create_group("X", attributes=attributes)
    pointers = np.concatenate([np.arange(NUM_LONG) * LONG, NUM_LONG * LONG + ROWS.indptr.astype(np.int64)])
    held.create_array("indptr", data=pointers, chunks=(16,))
    for name, values in (("data", ROWS.data), ("indices", ROWS.indices.astype("u2"))):
        array = held.create_array(name, shape=(int(pointers[-1]),), dtype=values.dtype, chunks=(100,))
        array[NUM_LONG * LONG :] = values
    document = json.loads((place / "zarr.json").read_text())
    del document["consolidated_metadata"]  # of the matrix that was there before
    (place / "zarr.json").write_text(json.dumps(document))
    return str(place)


def dense(rows):
    return rows.toarray() if sp.issparse(rows) else np.asarray(rows)


def test_batches_of_a_sampler(place):
    """Rows behind element 2**31 arrive as they are, each once, with their obs."""
    sampler = RandomSampler(4, 4, 8, mask=slice(NUM_LONG, None), rng=0)
    seen = []
    for batch in Loader(place, batch_sampler=sampler, return_index=True):
        np.testing.assert_array_equal(dense(batch["X"]), ROWS[batch["index"] - NUM_LONG].toarray())
        assert batch["obs"]["n"].tolist() == batch["index"].tolist()
        seen += batch["index"].tolist()
    assert sorted(seen) == NUMBERS.tolist()


@pytest.mark.parametrize(
    "options", [{}, {"dense": True}, {"genes": [7, 0, 31]}, {"dense": True, "dtype": "f8"}], ids=str
)
def test_batches_of_an_order(place, options):
    """Sparse, dense and chosen columns of these rows."""
    wanted = ROWS.toarray()[:, options.get("genes", slice(None))]
    part = RowSource(place, obs=("n",), cache=0, **options).subset(NUMBERS)
    seen = []
    with OrderedLoader(part, order=Order(part, batch_size=7), world=RankPlace(), device=None) as loader:
        for (batch,) in loader:
            np.testing.assert_array_equal(dense(batch["X"]), wanted[batch["n"] - NUM_LONG])
            seen += batch["n"].tolist()
    assert sorted(seen) == NUMBERS.tolist()


@pytest.mark.parametrize("align", [True, False])
def test_row_pointers_are_wide_enough(tmp_path, align):
    """A matrix that is written with so many elements says in 64 bits where its rows begin, and is read so."""
    lengths = np.concatenate([np.full(NUM_LONG, LONG), np.diff(ROWS.indptr)]).astype(np.int64)
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w", zarr_format=3)
    form = MatrixFormat(n_obs_per_chunk=1, align_rows=align)
    layout = create_sparse(group, "X", lengths=lengths, num_cols=2 * LONG, dtype=np.dtype("f4"), form=form)
    assert layout.num_elements >= lengths.sum() > 2**31
    assert group["X/indptr"].dtype == np.int64
    assert group["X/indices"].dtype == np.uint32
    metas = {
        name: read_meta(str(tmp_path / "g.zarr" / "X" / name)) for name in ("indptr", "row_nnz") if name in group["X"]
    }
    with BoxReader(threads=1, cache=0) as reader:
        pointers = RowPointers(metas["indptr"], layout.num_elements, reader, lengths=metas.get("row_nnz"))
        begin, held, _ = pointers.spans(np.arange(len(lengths)))
    assert held.tolist() == lengths.tolist()
    assert begin[NUM_LONG] >= NUM_LONG * LONG
    assert (np.diff(begin) >= lengths[:-1]).all()
