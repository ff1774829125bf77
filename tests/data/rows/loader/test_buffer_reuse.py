"""Memory of passes is used again by the next one."""

import pickle

import numpy as np
import pytest
import zarr

from rankwise.data.rows import Loader
from rankwise.data.rows.loader import datasets


@pytest.fixture
def stored(tmp_path):
    return zarr.create_array(str(tmp_path / "X"), data=np.arange(600, dtype="f4").reshape(100, 6), chunks=(10, 6))


@pytest.fixture
def made(monkeypatch):
    """How many readers of rows were made, each with memory of its own."""
    found = []

    class Counted(datasets.StoredRows):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(datasets, "StoredRows", Counted)
    return found


def rows_of(loader):
    return np.concatenate([batch["X"] for batch in loader])


def test_passes_share_their_memory(stored, made):
    """One after the other they read with the same; one inside the other each with its own."""
    loader = Loader(chunk_size=10, preload_nchunks=2, batch_size=10).add_dataset(stored)
    for _ in range(3):
        np.testing.assert_array_equal(rows_of(loader), stored[:])
    assert len(made) == 1
    outer = iter(loader)
    first = next(outer)["X"].copy()
    np.testing.assert_array_equal(rows_of(loader), stored[:])
    np.testing.assert_array_equal(np.concatenate([first, *(batch["X"] for batch in outer)]), stored[:])
    assert len(made) == 2


def test_batches_that_are_kept_stay_as_they_are(stored, made):
    """Those of an earlier pass too."""
    loader = Loader(chunk_size=10, preload_nchunks=2, batch_size=10).add_dataset(stored)
    kept = [[batch["X"] for batch in loader] for _ in range(3)]
    for batches in kept:
        np.testing.assert_array_equal(np.concatenate(batches), stored[:])
    assert len(made) == 1


def test_a_pass_that_is_left_early_gives_back(stored, made):
    """Its memory serves the next one."""
    loader = Loader(chunk_size=10, preload_nchunks=2, batch_size=10).add_dataset(stored)
    passing = iter(loader)
    next(passing)
    passing.close()
    np.testing.assert_array_equal(rows_of(loader), stored[:])
    assert len(made) == 1


def test_new_datasets_and_other_processes_begin_anew(stored, made):
    """What a pass held before knows nothing of a dataset that was added, and does not travel."""
    loader = Loader(chunk_size=10, preload_nchunks=2, batch_size=10).add_dataset(stored)
    rows_of(loader)
    assert len(pickle.dumps(loader)) < 20_000
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(loader))), stored[:])
    loader.add_dataset(stored)
    np.testing.assert_array_equal(rows_of(loader), np.concatenate([stored[:], stored[:]]))
    assert len(made) == 3


def test_who_keeps_nothing_pays_for_two_requests(stored, made):
    """Of 5 requests in each of 4 passes one is in use while another is read, though a loop looks at its last batch."""
    loader = Loader(chunk_size=10, preload_nchunks=2, batch_size=10).add_dataset(stored)
    for _ in range(4):
        for batch in loader:
            x = batch["X"]
            x.sum()
    assert made[0]._pool.num_pieces == 2
