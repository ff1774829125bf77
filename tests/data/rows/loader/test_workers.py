"""Loaders inside torch's DataLoader."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from rankwise.data.rows import Loader
from rankwise.data.rows.samplers import ClassSampler, DistributedSampler, RandomSampler, SequentialSampler
from rankwise.testing.small_rows import small_anndata, write_anndata

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


def test_spawned_workers_that_stay(store):
    """The loader travels to them; their second epoch is another order, and complete too."""
    place, whole = store
    loader = make(place, DistributedSampler(RandomSampler(3, 4, 6, rng=0), dist_info=lambda: (1, 2)))
    batches = DataLoader(
        loader, batch_size=None, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )
    first, second = epoch(batches, whole), epoch(batches, whole)
    assert first != second
    for shown in (first, second):
        assert {len(rows) for rows in shown} == {6}
        assert len({row for rows in shown for row in rows}) == 48
    assert {row for shown in (first, second) for rows in shown for row in rows} == set(range(50, 100))


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
            with pytest.raises(ValueError, match="2 workers would mix the stored order: take num_workers=0"):
                next(iter(loader))
    assert epoch(loader, whole) == epoch(DataLoader(loader, batch_size=None), whole)
