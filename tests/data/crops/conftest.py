"""Small volumes for the tests of crops."""

from dataclasses import dataclass

import numpy as np
import pytest
import zarr

import rankwise.data.crops as damacy


@dataclass(frozen=True)
class Volume:
    """An array on disk and its values."""

    uri: str
    values: np.ndarray

    def sample(self, *start, shape=(4, 8, 8), **more):
        return damacy.Sample(self.uri, tuple((a, a + n) for a, n in zip(start, shape, strict=True)), **more)

    def samples(self, count, *, shape=(4, 8, 8), seed=1):
        """A generator of random boxes."""
        rng = np.random.default_rng(seed)
        for _ in range(count):
            start = rng.integers(0, np.array(self.values.shape) - shape + 1)
            yield self.sample(*start.tolist(), shape=shape)

    def crop(self, sample):
        return self.values[tuple(slice(a, b) for a, b in sample.aabb)]


def make_volume(path, shape=(20, 30, 40), *, seed=0, dtype="u2", **options):
    values = np.random.default_rng(seed).integers(1, 1000, shape).astype(dtype)
    options = {"chunks": (5, 10, 10), "shards": (10, 30, 40), **options}
    zarr.create_array(str(path), data=values, **options)
    return Volume(str(path), values)


@pytest.fixture
def volume(tmp_path):
    return make_volume(tmp_path / "v")


@pytest.fixture
def make(tmp_path):
    """Makes volumes: ``make("name", shape, ...)``."""
    return lambda name, *args, **options: make_volume(tmp_path / name, *args, **options)
