"""Chunks of CSR matrices that are not in the store: left out as nothing but zeros, or lost."""

import logging
from pathlib import Path

import anndata
import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.rows import OrderedLoader, RowSource, notices
from rankwise.errors import SampleError
from rankwise.testing.stores.small_rows import random_csr, write_anndata

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
    for (batch,) in OrderedLoader(source, order=order, device=None):
        rows = batch["X"].toarray() if not options else batch["X"]
        np.testing.assert_array_equal(rows, whole[batch.ids][:, options.get("genes", slice(None))])
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(NUM_ROWS))
    Path(place, "X/data/c/1").unlink()
    with pytest.raises(SampleError, match=r"X/data (is|are) not in the store"), RowSource(place, **options) as again:
        list(OrderedLoader(again, order=order, device=None))


def test_files_of_one_chunk_that_held_zeros(tmp_path, caplog, monkeypatch):
    """Where column numbers are there, values without a file are the stored zeros that they were; it is said once."""
    monkeypatch.setattr(notices, "_said", set())
    place = str(tmp_path / "a.zarr")
    matrix = store(place, shards=None)
    assert not Path(place, "X/data/c/5").exists()
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        for options in ({}, {"dense": True}):
            seen = []
            for (batch,) in OrderedLoader(place, order=Order(NUM_ROWS, batch_size=7), device=None, **options):
                rows = batch["X"] if options else batch["X"].toarray()
                np.testing.assert_array_equal(rows, matrix[batch.ids].toarray())
                seen += batch.ids.tolist()
            assert sorted(seen) == list(range(NUM_ROWS))
    [text] = [record.getMessage() for record in caplog.records]
    assert f"of the array {place}/X/data " in text
    assert "its values count as zeros" in text


def test_files_of_column_numbers_that_are_gone(tmp_path):
    """Rows whose column numbers lie in no file are damaged, with their values or without; others arrive."""
    place = str(tmp_path / "a.zarr")
    matrix = store(place, shards=None)
    Path(place, "X/indices/c/6").unlink()
    Path(place, "X/indices/c/12").unlink()
    rows = np.repeat(np.arange(NUM_ROWS), np.diff(matrix.indptr))
    lost = {*rows[120:140].tolist(), *rows[240:260].tolist()}
    seen = []
    for (batch,) in OrderedLoader(place, order=Order(NUM_ROWS, batch_size=7), device=None, on_bad_sample=len(lost)):
        np.testing.assert_array_equal(batch["X"].toarray(), matrix[batch.ids].toarray())
        seen += batch.ids.tolist()
    assert sorted(seen) == sorted(set(range(NUM_ROWS)) - lost)
