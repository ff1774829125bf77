"""Small stores whose costs are known."""

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """No test sees or leaves decoding speeds in the home of whoever runs it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home-cache"))


@pytest.fixture
def write(tmp_path):
    """Write an array of random values and return its path."""

    def make(name="a.zarr", *, shape=(40, 48, 56), chunks=(8, 16, 16), shards=(16, 32, 32), data=None, **options):
        options.setdefault("compressors", ZstdCodec(level=1))
        options.setdefault("dtype", "uint16")
        array = zarr.create_array(tmp_path / name, shape=shape, chunks=chunks, shards=shards, **options)
        array[...] = np.random.default_rng(0).integers(0, 500, shape) if data is None else data
        return str(tmp_path / name)

    return make
