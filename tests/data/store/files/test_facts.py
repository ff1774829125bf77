"""What is known of files, asked once."""

import numpy as np
import pytest
import zarr

from rankwise.data.store import read_meta
from rankwise.data.store.files.facts import FactsCache
from rankwise.errors import DataError


def empty(**limits):
    return FactsCache(None, lambda array: 0, **limits)


def lookup(facts_cache, meta, number, coords):
    (facts,) = facts_cache.lookup([meta], np.array([0]), np.array([number]), np.array([coords]))
    return facts


@pytest.fixture
def meta(tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(16, 4), chunks=(2, 4), shards=(8, 4), dtype="u2")
    array[:8] = 1
    return read_meta(str(tmp_path / "a"))


def test_an_index_is_read_once(meta):
    """Asking again touches no file."""
    facts_cache = empty()
    facts = lookup(facts_cache, meta, 0, (0, 0))
    assert facts.index.shape == (4, 2)
    assert lookup(facts_cache, meta, 0, (0, 0)) is facts
    assert facts_cache.num_looked_at == 1


def test_a_file_that_was_never_written(meta):
    """No file is no error: its chunks are the fill value."""
    facts = lookup(empty(), meta, 1, (1, 0))
    assert not facts.exists
    assert facts.index is None


def test_memory_is_bounded(meta):
    """What was asked for least recently is forgotten."""
    facts_cache = empty(capacity_bytes=1300)
    for number in range(5):
        lookup(facts_cache, meta, number, (0, 0))
    assert facts_cache.num_looked_at == 5
    lookup(facts_cache, meta, 4, (0, 0))
    assert facts_cache.num_looked_at == 5
    lookup(facts_cache, meta, 0, (0, 0))
    assert facts_cache.num_looked_at == 6


def test_only_so_many_files_are_remembered(meta):
    """Where their number is limited, whatever they weigh."""
    facts_cache = empty(most_files=2)
    for number in (0, 1, 2, 1, 2):
        lookup(facts_cache, meta, number, (0, 0))
    assert facts_cache.num_looked_at == 3
    lookup(facts_cache, meta, 0, (0, 0))
    assert facts_cache.num_looked_at == 4


def test_a_folder_in_place_of_a_file(meta, tmp_path):
    """What is no file is not taken for a missing chunk."""
    (tmp_path / "a" / "c" / "1" / "0").mkdir(parents=True)
    error = lookup(empty(), meta, 1, (1, 0)).error
    assert isinstance(error, DataError)
    assert "not a regular file" in str(error)


def test_the_index_is_that_of_the_file(meta):
    """Offsets and lengths are those of the chunks that zarr-python wrote."""
    facts = lookup(empty(), meta, 0, (0, 0))
    assert (facts.index[:, 1] > 0).all()
    assert np.unique(facts.index[:, 0]).size == 4
