"""A cache that is too small for its order is said, with the size needed."""

import re
import warnings

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing.shares import RankPlace


def loader(path, cache, *, rank=0, world_size=1, **options):
    source = ArraySource({"x": path}, cache=cache)
    order = Order(source, batch_size=16, **options)
    return SampleLoader(source, order=order, world=RankPlace(rank, world_size))


def test_the_size_that_is_named_is_enough(tmp_path):
    """A small cache warns on the main rank alone; with the size it names, nothing is said and chunks decode once."""
    zarr.create_array(tmp_path, data=np.arange(4096).reshape(512, 8), chunks=(8, 8))
    with pytest.warns(UserWarning, match="several times per epoch") as caught:
        loader(tmp_path, 1000, lanes=4, window=4)
    needed = int(re.search(r"cache=(\d+)", str(caught[0].message))[1])
    assert needed == 4 * 4 * 8 * 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(tmp_path, 1000, rank=1, world_size=2, lanes=4, window=4)
        loader(tmp_path, needed // 2, rank=0, world_size=2, lanes=4, window=4)
        loader(tmp_path, 0, lanes=4, window=4)
        loader(tmp_path, 1000, kind="sequential")
        enough = loader(tmp_path, needed, lanes=4, window=4)
    for _ in enough:
        pass
    assert enough.stats.chunks_decoded <= 1.15 * 64


def test_arrays_in_memory_need_no_cache():
    """What is not decoded is not cached, and nothing is said."""
    source = ArraySource({"x": np.zeros((1000, 1000))}, cache=1)
    with warnings.catch_warnings(record=True) as said:
        SampleLoader(source, order=Order(source, batch_size=16), world=RankPlace(0, 1))
    assert not said
