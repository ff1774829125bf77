"""Samples behind URLs: the same values, the same reports."""

from itertools import count

import numpy as np
import pytest
import zarr

from rankwise.data.samples import ArraySource
from rankwise.data.store.remote import memory_store
from rankwise.errors import DataError, SampleError

obstore = pytest.importorskip("obstore")
number = count()
DATA = np.random.default_rng(0).integers(1, 99, (40, 6)).astype("i4")


@pytest.fixture
def url(tmp_path):
    """A group of two arrays in the memory of the process; chunks of rows 8 to 11 of both were never written."""
    group = zarr.create_group(tmp_path)
    for name, options in {"files": {"chunks": (4, 6)}, "shards": {"chunks": (4, 6), "shards": (8, 6)}}.items():
        array = group.create_array(name, shape=DATA.shape, dtype="i4", fill_value=5, **options)
        array[:8], array[12:] = DATA[:8], DATA[12:]
    made = f"memory://samples{next(number)}"
    for path in tmp_path.rglob("*"):
        if path.is_file():
            obstore.put(memory_store(made), f"data/{path.relative_to(tmp_path)}", path.read_bytes())
    return f"{made}/data"


def test_samples_behind_a_url(url):
    """Groups open, rows are right through our own decoders, and missing chunks are counted, also single objects."""
    with ArraySource.open(url) as source:
        assert list(source.fields) == ["files", "shards"]
        for row in (0, 21, 39):
            assert {name: values.tolist() for name, values in source[row].items()} == {
                name: DATA[row].tolist() for name in source.fields
            }
        assert source.stats.slow_chunks == source.stats.fill_chunks == 0
        assert (source[10]["files"] == 5).all()
        assert source.stats.fill_chunks == 2
        assert "://" in source.reader.plan(source._columns["files"].request(np.array([1]))).files[0].path


def test_missing_objects_are_errors_if_asked_for(url):
    """With missing="error" a row of an object that is not there fails, in a shard and as an object of its own."""
    with ArraySource.open(url, missing="error") as source:
        for name in source.fields:
            only = source.select([name])
            np.testing.assert_array_equal(only[7][name], DATA[7])
            for _ in range(2):  # what is not there is not taken for a decoded chunk the next time
                with pytest.raises(SampleError, match=rf"sample 10 .*/data/{name} .*missing='fill'"):
                    only[10]


def test_fingerprints_are_those_of_a_folder(url, tmp_path):
    """The order of a run does not change when its store moves behind a URL."""
    assert ArraySource.open(url).fingerprint == ArraySource.open(tmp_path).fingerprint


def test_what_is_not_there_is_told(url):
    """No group, no array."""
    with pytest.raises(DataError, match="no Zarr array or group"):
        ArraySource.open(f"{url}/nothing")
    with pytest.raises(DataError, match="no array 'z'; it holds 'files', 'shards'"):
        ArraySource.open(url, fields=["z"])
