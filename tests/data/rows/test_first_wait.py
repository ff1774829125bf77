"""What the first batch of a job waits for: its own request or window, read by all threads, and nothing else."""

import threading

import numpy as np
import pytest
import scipy.sparse
import zarr

from rankwise import Order
from rankwise.data.rows import Loader, OrderedLoader, RowSource, write_sharded
from rankwise.data.store.decode.kernel import KernelDecoder
from rankwise.testing.new_threads import threads_since

anndata = pytest.importorskip("anndata")
ROWS, COLS, THREADS = 4096, 400, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """4,096 rows of 100 elements in chunks of 64 rows: 3 MB."""
    rng = np.random.default_rng(0)
    columns = np.sort(np.argsort(rng.random((ROWS, COLS)), axis=1)[:, :100], axis=1).astype(np.int32)
    parts = (rng.random(ROWS * 100, dtype=np.float32), columns.ravel(), np.arange(ROWS + 1) * 100)
    folder = tmp_path_factory.mktemp("first") / "cells.zarr"
    matrix = scipy.sparse.csr_matrix(parts, shape=(ROWS, COLS))
    write_sharded(zarr.open_group(folder, mode="w"), anndata.AnnData(X=matrix), n_obs_per_chunk=64)
    return str(folder)


def ordered(place):
    rows = RowSource(place, threads=THREADS)
    return OrderedLoader(rows, order=Order(rows, batch_size=256, lanes=4, window=8), device=None, depth=8)


def requests(place, monkeypatch):
    monkeypatch.setattr("rankwise.data.store.execution.context.reading_threads", lambda: THREADS)
    loader = Loader(chunk_size=64, preload_nchunks=32, batch_size=256, shuffle=True, rng=0)
    return loader.add_dataset(anndata.io.sparse_dataset(zarr.open_group(place, mode="r")["X"]))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", ["ordered", "requests"])
def test_all_threads_decode_the_first_batch(place, monkeypatch, kind, early):
    """As many threads as the reader has are at work on it at the same time."""
    at_work, seen = threading.Barrier(THREADS), set()
    whole = KernelDecoder.run

    def run(self, tasks, first, last, out, *scratch):
        name = threading.current_thread().name
        if len(out) > ROWS + 1 and name not in seen and len(seen) < THREADS:  # elements, not row pointers
            seen.add(name)
            at_work.wait(20)  # broken, unless all of them come
        whole(self, tasks, first, last, out, *scratch)

    loader = ordered(place) if kind == "ordered" else requests(place, monkeypatch)
    monkeypatch.setattr(KernelDecoder, "run", run)
    if early:
        assert loader.start_prefetch()
        for thread in threads_since("rankwise-reader"):
            thread.join(20)
        assert len(seen) == THREADS
    batches = iter(loader)
    next(batches)
    assert len(seen) == THREADS
    assert not at_work.broken
    batches.close()


def test_nothing_else_is_planned_before_it(place, monkeypatch):
    """The window that follows is planned when the first one is read, as its plan costs time too."""
    noted = []
    plan, read = RowSource.plan, RowSource.read

    def noted_plan(self, share):
        noted.append(("plan", share.num_samples))
        return plan(self, share)

    def noted_read(self, planned, into):
        noted.append(("read", planned.share.num_samples))
        return read(self, planned, into)

    monkeypatch.setattr(RowSource, "plan", noted_plan)
    monkeypatch.setattr(RowSource, "read", noted_read)
    loader = ordered(place)
    assert sum(batch.count for (batch,) in loader) == ROWS
    assert noted[:3] == [("plan", 2048), ("read", 2048), ("plan", 2048)]
