"""A store that changes under a loader never gives rows of another one."""

import contextlib

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.rows import DatasetCollection, OrderedLoader
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.stores.small_rows import small_anndata


def rows_seen(loader, meanwhile):
    """Yield (rows, what obs says they are) of an epoch, as far as it comes; something happens after its first step."""
    for number, (batch,) in enumerate(loader):
        yield batch["X"].copy(), batch["n"].copy()
        if number == 0:
            meanwhile()


def test_a_collection_that_is_reshuffled_under_a_loader(tmp_path):
    """No row is another: open files are read on, or it is said that they were replaced, and what to do."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    collection.add_adatas([small_anndata(200, 9)], rng=0, n_obs_per_chunk=8, shard_size="2KB", matrices=["X"])
    order = Order(collection, batch_size=16)
    loader = OrderedLoader(collection, order=order, obs=["n"], dense=True, device=None, cache=0, depth=0)
    found = []
    with contextlib.suppress(SampleError):
        found.extend(rows_seen(loader, lambda: collection.add_adatas([], reshuffle=True, rng=1)))
    assert len(found) >= 1
    rows = small_anndata(200, 9).X.toarray()
    for matrix, numbers in found:
        np.testing.assert_array_equal(matrix, rows[numbers])
    loader.source.close()  # no file is open any more
    with pytest.raises(SampleError, match=r"dataset_0/X/\w+ was moved, deleted or unmounted after it was opened"):
        next(iter(loader))
    with pytest.raises(ConfigError, match="the order is for other rows"):
        OrderedLoader(collection, order=order)
