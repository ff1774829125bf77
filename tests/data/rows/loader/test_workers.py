"""Loaders inside torch's DataLoader."""

import copy
import logging
import os
import signal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

from rankwise.data.rows import Loader, notices
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import ClassSampler, DistributedSampler, RandomSampler, SequentialSampler
from rankwise.errors import SampleError
from rankwise.testing.stores.small_rows import small_anndata, write_anndata

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),  # torch's own, where tensors of workers arrive
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = small_anndata(100)
    return write_anndata(made, tmp_path_factory.mktemp("rows") / "a.zarr"), made.X.toarray()


def epoch(batches, whole):
    """Row numbers of each batch; every row is that of its number."""
    out = []
    for batch in batches:
        index = np.asarray(batch["index"])
        np.testing.assert_array_equal(batch["X"].to_dense().numpy(), whole[index])
        assert (batch["obs"]["n"].to_numpy() == index).all()
        out.append(index.tolist())
    return out


def make(place, sampler):
    return Loader(place, batch_sampler=sampler, return_index=True, to="torch")


def test_forked_workers_take_a_new_order_each_epoch(store):
    """Each row once in an epoch, the short batch included; epochs differ though workers begin anew."""
    place, whole = store
    loader = make(place, RandomSampler(3, 4, 6, rng=0))
    batches = DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="fork")
    first, second = (epoch(batches, whole) for _ in range(2))
    for shown in (first, second):
        assert sorted(row for rows in shown for row in rows) == list(range(100))
        assert sorted(map(len, shown)) == [4, *[6] * 16]
    assert first != second


def test_set_epoch_makes_workers_follow_the_seed(store):
    """The batches are those of a loader without workers at this epoch, whatever torch's seed."""
    place, whole = store
    loader = make(place, RandomSampler(3, 4, 6, rng=0))
    alone = epoch(make(place, RandomSampler(3, 4, 6, rng=0)), whole)
    loader.set_epoch(0)
    batches = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(epoch(batches, whole)) == sorted(alone)


def once(shown, rows):
    return sorted(row for batch in shown for row in batch) == list(rows)


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        ("forkserver", 1),
        pytest.param("spawn", 2, marks=pytest.mark.slow),  # each loads torch anew
        pytest.param("forkserver", 2, marks=pytest.mark.slow),
    ],
)
def test_workers_that_stay_see_the_epoch(store, method, num_workers):
    """The loader travels to them; epochs chosen later arrive, others are counted; each row of the rank once in each."""
    place, whole = store

    def one():
        sampler = RandomSampler(3, 4, 6, rng=0)
        return make(place, DistributedSampler(sampler, dist_info=lambda: (1, 2), enforce_equal_batches=False))

    loader, alone = one(), one()
    batches = DataLoader(
        loader, batch_size=None, num_workers=num_workers, multiprocessing_context=method, persistent_workers=True
    )
    counted = [epoch(batches, whole) for _ in range(2)]
    assert counted[0] != counted[1]
    for chosen in (7, None, 0):  # None: the one after
        if chosen is not None:
            loader.set_epoch(chosen)
            alone.set_epoch(chosen)
        counted.append(epoch(batches, whole))
        assert sorted(counted[-1]) == sorted(epoch(alone, whole))
    assert all(once(shown, range(50, 100)) for shown in counted)


def forked(loader, num_workers=2, **options):
    return DataLoader(loader, batch_size=None, num_workers=num_workers, multiprocessing_context="fork", **options)


def test_workers_that_begin_anew_count_on_from_the_epoch_that_was_chosen(store):
    """Each pass is the next epoch of the seed, also where this process read one of them; one that is named comes."""
    place, whole = store
    loader, alone = (make(place, RandomSampler(3, 4, 6, rng=0)) for _ in range(2))
    for one in (loader, alone):
        one.set_epoch(3)
    expected = [sorted(epoch(alone, whole)) for _ in range(3)]
    assert [sorted(epoch(forked(loader), whole)) for _ in range(3)] == expected
    loader.set_epoch(3)
    assert sorted(epoch(loader, whole)) == expected[0]
    assert sorted(epoch(forked(loader), whole)) == expected[1]


class Own(Sampler):
    """Ten rows to a request, in random order if there is a generator."""

    def __init__(self, rng):
        self.rng, self.batch_size, self.shuffle = rng, 4, True

    def _sample(self, n_obs):
        rng = np.random.default_rng() if self.rng is None else self.rng
        for first in rng.permutation(range(0, n_obs, 10)).tolist():
            yield {"requests": [slice(first, first + 10)]}


class Peeking(torch.utils.data.IterableDataset):
    """Looks at its first batch before it yields them."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        assert len(self.loader.peek()["index"]) in (4, 6)
        return iter(self.loader)


@pytest.mark.parametrize("sampler", [RandomSampler(3, 4, 6, rng=0), Own(0)])
def test_a_look_in_a_worker_is_no_pass(store, sampler):
    """Nor is counting the batches of an own sampler; the workers stay in one epoch, and each pass is the next."""
    place, whole = store
    alone = make(place, copy.deepcopy(sampler))
    batches = forked(Peeking(make(place, sampler)), persistent_workers=True)
    for _ in range(2):
        assert sorted(epoch(batches, whole)) == sorted(epoch(alone, whole))


@pytest.mark.parametrize("halfway", [False, True])
def test_forked_behind_a_pass(store, halfway):
    """A process that read, or reads just now, has threads and locks that workers have not: they read all the same."""
    place, whole = store
    loader = make(place, RandomSampler(3, 4, 6, rng=0))
    passing = iter(loader)
    next(passing)
    if not halfway:
        list(passing)
    assert once(epoch(forked(loader), whole), range(100))
    passing.close()


class Sharing(Own):
    """One that knows about workers."""

    handles_workers = True

    def _sample(self, n_obs):
        worker = torch.utils.data.get_worker_info() or SimpleNamespace(id=0, num_workers=1)
        yield from list(super()._sample(n_obs))[worker.id :: worker.num_workers]


def with_worker(batch):
    return {**batch, "worker": torch.utils.data.get_worker_info().id}


@pytest.mark.parametrize(
    ("make_sampler", "workers"),
    [
        (lambda: Own(0), {0, 1}),
        (lambda: Sharing(0), {0, 1}),
        (lambda: DistributedSampler(Own(0), dist_info=lambda: (0, 1), enforce_equal_batches=False), {0, 1}),
        (lambda: Own(None), {0}),
    ],
)
def test_own_samplers_in_several_workers(store, make_sampler, workers):
    """Each row once over all workers: requests are dealt out, unless workers may draw differently; then one reads."""
    place, whole = store
    loader = make(place, make_sampler())
    for _ in range(2):
        batches = list(forked(loader, 2, collate_fn=with_worker))
        assert once(epoch(batches, whole), range(100))
        assert {batch["worker"] for batch in batches} == workers


def test_idle_workers_are_explained(store, monkeypatch, caplog):
    """By the one that reads everything, once; not where one reads alone, or the sampler can be dealt out."""
    place, _ = store
    monkeypatch.setattr(notices, "_said", set())
    for count, number, rng, said in [(1, 0, None, 0), (2, 0, 5, 0), (2, 1, None, 0), (2, 0, None, 1), (2, 0, None, 1)]:
        told = SimpleNamespace(id=number, num_workers=count, seed=7)
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda told=told: told)
        with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
            list(make(place, Own(rng)))
        assert caplog.text.count("one of 2 workers reads everything: Own has no rng") == said


def test_what_fails_in_a_worker_fails_here(tmp_path):
    """Damage is the error that it is without workers, with its row."""
    made = small_anndata(100)
    place = write_anndata(made, tmp_path / "a.zarr")
    zarr.open_array(f"{place}/X/indices", mode="a")[made.X.indptr[60]] = 99
    row = int(np.flatnonzero(np.diff(made.X.indptr[60:]))[0]) + 60
    with pytest.raises(SampleError, match=f"row {row} .* it has column numbers outside the matrix .it has 6"):
        list(forked(make(place, SequentialSampler(5, 2, 10)), 1))


class Killed(Own):
    """Kills the worker behind the first request."""

    def n_batches(self, n_obs):
        return 2

    def _sample(self, n_obs):
        yield {"requests": [slice(0, 10)]}
        os.kill(os.getpid(), signal.SIGKILL)
        yield {"requests": [slice(10, n_obs)]}


def test_a_worker_that_is_killed_ends_the_epoch(store):
    """No pass goes on without its rows."""
    place, _ = store
    with pytest.raises(RuntimeError, match=r"DataLoader worker .*(killed by signal|exited unexpectedly)"):
        list(forked(make(place, Killed(0)), 1))


def test_classes_in_workers(store):
    """Draws with replacement are dealt out to workers too: as many rows as asked."""
    place, whole = store
    classes = pd.Categorical(np.repeat(["a", "b"], 50))
    loader = make(place, ClassSampler(5, 2, 10, classes=classes, num_samples=95, rng=0))
    shown = epoch(DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork"), whole)
    assert sum(map(len, shown)) == 95
    assert all(len(set(classes[rows])) == 1 for rows in shown)


def test_the_stored_order_wants_one_worker(store, monkeypatch):
    """Several would mix it: refused in the worker with the mend. One is fine, and so is none."""
    place, whole = store
    loader = make(place, SequentialSampler(5, 2, 10))
    for count in (2, 1):
        told = SimpleNamespace(id=0, num_workers=count, seed=7)
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda told=told: told)
        if count > 1:
            with pytest.raises(ValueError, match="2 workers would mix the stored order: use num_workers=0"):
                next(iter(loader))
    assert epoch(loader, whole) == epoch(DataLoader(loader, batch_size=None), whole)
