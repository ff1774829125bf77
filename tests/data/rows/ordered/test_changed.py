"""A store that changes under a loader never gives rows of another one."""

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.rows import DatasetCollection, Loader
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.small_rows import small_anndata


def seen_rows(loader, meanwhile):
    """Yield (rows, what obs says they are) of two epochs; something happens after the first step."""
    for epoch in range(2):
        loader.set_epoch(epoch)
        for number, (batch,) in enumerate(loader):
            yield batch["X"].copy(), batch["n"].copy()
            if epoch == number == 0:
                meanwhile()


def test_a_collection_that_is_reshuffled_under_a_loader(tmp_path):
    """Open files are read to the end as they were; what is gone is said, with what to do, and no row is another."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    collection.add_adatas([small_anndata(200, 9)], rng=0, n_obs_per_chunk=8, shard_size="2KB", matrices=["X"])
    order = Order(collection, batch_size=16)
    loader = Loader(collection, order=order, obs=["n"], dense=True, device=None, cache=0)
    found = []
    with pytest.raises(SampleError, match=r"dataset_0/X.* in a file that was replaced .*open the store anew"):
        found.extend(seen_rows(loader, lambda: collection.add_adatas([], reshuffle=True, rng=1)))
    assert len(found) >= 1
    rows = small_anndata(200, 9).X.toarray()
    for matrix, numbers in found:
        np.testing.assert_array_equal(matrix, rows[numbers])
    with pytest.raises(ConfigError, match="the order was made of other rows"):
        Loader(collection, order=order)
