"""Positions of loaders with a sampler: saved inside an epoch, and gone on from."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from rankwise.checkpoint import Checkpointer
from rankwise.data.rows import Loader, notices
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import (
    ClassSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedClassSampler,
)
from rankwise.errors import ConfigError
from rankwise.testing.stores.small_rows import small_anndata, write_anndata

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

NUM_ROWS = 100
CLASSES = pd.Categorical(np.repeat(["a", "b"], NUM_ROWS // 2))
TWO_RANKS = {"dist_info": lambda: (1, 2)}
SAMPLERS = {
    "random": lambda: RandomSampler(3, 4, 6, rng=0),
    "part of the rows": lambda: RandomSampler(3, 4, 6, num_samples=50, mask=slice(7, 97), rng=0),
    "with replacement": lambda: RandomSampler(3, 4, 6, replacement=True, num_samples=73, rng=0),
    "sequential": lambda: SequentialSampler(5, 3, 5, drop_last=True),
    "classes": lambda: ClassSampler(4, 3, 6, classes=CLASSES, num_samples=70, rng=0),
    "weighted classes": lambda: WeightedClassSampler(4, 3, 6, classes=CLASSES, num_samples=70, rng=0),
    "ranks": lambda: DistributedSampler(RandomSampler(3, 4, 6, rng=0), **TWO_RANKS),
    "unequal ranks": lambda: DistributedSampler(SequentialSampler(2, 4, 4), enforce_equal_batches=False, **TWO_RANKS),
    "ranks and classes": lambda: DistributedSampler(
        ClassSampler(4, 3, 6, classes=CLASSES, num_samples=70, rng=0), **TWO_RANKS
    ),
}


class Drawing(Sampler):
    """An own sampler: some rows, as its generator says."""

    batch_size, shuffle = 5, True

    def __init__(self, rng=0):
        self.rng = rng

    def _sample(self, n_obs):
        for _ in range(4):
            yield {"requests": self.rng.integers(0, n_obs, 12)}


class Telling(Drawing):
    """One that says that this is all."""

    def pass_settings(self):
        return {"requests": 4, "rows": (12,)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_anndata(small_anndata(NUM_ROWS), tmp_path_factory.mktemp("rows") / "a.zarr")


def make(store, sampler, **options):
    return Loader(store, batch_sampler=sampler, return_index=True, **options)


def shown(batch):
    """All bytes of a batch."""
    x = sp.csr_matrix(batch["X"])
    parts = (x.data, x.indices, x.indptr, batch["index"], batch["obs"]["n"].to_numpy())
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def through_json(loader):
    return json.loads(json.dumps(loader.state_dict()))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(SAMPLERS)), st.integers(0, 3), st.integers(0, 40))
def test_the_batches_that_follow_are_the_same(store, kind, epoch, stop):
    """Byte for byte to the end of the epoch, and so is the next; wherever it was left, by any of our samplers."""
    whole = make(store, SAMPLERS[kind]())
    whole.set_epoch(epoch)
    expected = [shown(batch) for batch in whole]
    stop = min(stop, len(expected))
    first = make(store, SAMPLERS[kind]())
    first.set_epoch(epoch)
    for _, _batch in zip(range(stop), first, strict=False):
        pass
    state = through_json(first)
    again = make(store, SAMPLERS[kind]())
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert len(again) == len(whole) == len(expected)
    over = stop == len(expected)
    assert again.num_left == len(expected) - (0 if over else stop)
    assert (state["epoch"], state["batches"]) == ((epoch + 1, 0) if over else (epoch, stop))
    if not over:
        assert [shown(batch) for batch in again] == expected[stop:]
    assert [shown(batch) for batch in again] == [shown(batch) for batch in whole]


def test_what_was_shown_is_not_read_again(store, reads):
    """Of the request that was left in its middle only the rest is read, and nothing of those before."""
    loader = make(store, RandomSampler(3, 4, 6, rng=0))
    for number, _ in enumerate(loader, 1):
        if number == 5:
            break
    again = make(store, RandomSampler(3, 4, 6, rng=0), across_epochs=False)
    again.load_state_dict(loader.state_dict())
    del loader, _
    reads.clear()
    assert sum(len(batch["index"]) for batch in again) == NUM_ROWS - 5 * 6
    assert len(reads[0]) == 6
    assert sum(map(len, reads)) == NUM_ROWS - 5 * 6


def test_an_unseeded_sampler_carries_its_seed_along(store):
    """Without rng= the order is another in every process; the position brings it back, in later epochs too."""
    loader = make(store, RandomSampler(3, 4, 6))
    rows = iter(loader)
    next(rows)
    state = through_json(loader)
    again = make(store, RandomSampler(3, 4, 6))
    again.load_state_dict(state)
    assert [shown(batch) for batch in again] == [shown(batch) for batch in rows]
    assert [shown(batch) for batch in again] == [shown(batch) for batch in loader]


def ranks(rank, sampler, count=2):
    return DistributedSampler(sampler, dist_info=lambda: (rank, count))


def test_the_state_of_one_rank_serves_all_with_a_seed(store):
    """Rank 1 goes on from what rank 0 saved, as from its own; unseeded ranks need their own, and are told."""
    left = []
    for rank in range(2):
        loader = make(store, ranks(rank, RandomSampler(3, 4, 6, rng=0)))
        rows = iter(loader)
        next(rows)
        left.append((through_json(loader), [shown(batch) for batch in rows]))
    again = make(store, ranks(1, RandomSampler(3, 4, 6, rng=0)))
    again.load_state_dict(left[0][0])
    assert [shown(batch) for batch in again] == left[1][1]
    unseeded = make(store, ranks(1, RandomSampler(3, 4, 6)))
    with pytest.raises(
        ConfigError, match=r"it belongs to rank 0, this is rank 1.*save the state of every rank, or .* rng=0"
    ):
        unseeded.load_state_dict(left[0][0])
    unseeded.load_state_dict(left[1][0])
    assert [shown(batch) for batch in unseeded] == left[1][1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: make_random(batch_size=4), "batch_size was 6, is 4"),
        (lambda: make_random(mask=slice(0, 90)), r"mask was \[0, None\], is \[0, 90\]"),
        (lambda: make_random(rng=1), "another rng"),
        (lambda: SequentialSampler(3, 4, 6), "kind was RandomSampler, is SequentialSampler.*has a generator"),
        (lambda: ranks(0, make_random()), "ranks was None, is 2"),
        (Drawing, r"Drawing does not declare.*pass_settings\(\)"),
    ],
)
def test_what_would_not_be_the_same_epoch_is_refused(store, change, said):
    """Another sampler or number of ranks: with what differs, and order= as the mend. Between two epochs it may be."""
    loader = make(store, make_random())
    rows = iter(loader)
    next(rows)
    state = through_json(loader)
    other = make(store, change())
    with pytest.raises(ConfigError, match=f"1 batches into epoch 0.*{said}.*order=Order"):
        other.load_state_dict(state)
    list(rows)
    other.load_state_dict(through_json(loader))
    assert other.batch_sampler.epoch == 1


def make_random(batch_size=6, mask=None, rng=0):
    return RandomSampler(3, 4, batch_size, mask=mask, rng=rng)


def test_other_world_sizes_are_refused_inside_an_epoch(store):
    """What a rank shows depends on how many they are; the numbers are named."""
    loader = make(store, ranks(0, make_random()))
    rows = iter(loader)
    next(rows)
    with pytest.raises(ConfigError, match=r"ranks was 2, is 3.*any number of ranks"):
        make(store, ranks(0, make_random(), 3)).load_state_dict(loader.state_dict())


def test_other_data_are_refused_inside_an_epoch(store, tmp_path):
    """Rows, and the shape they are stored in; a copy elsewhere is the same; matrices in memory by shape and dtype."""
    loader = make(store, make_random())
    rows = iter(loader)
    next(rows)
    state, rest = loader.state_dict(), [shown(batch) for batch in rows]
    copy = make(write_anndata(small_anndata(NUM_ROWS), tmp_path / "copy.zarr"), make_random())
    copy.load_state_dict(state)
    assert [shown(batch) for batch in copy] == rest
    more = make(write_anndata(small_anndata(NUM_ROWS + 1), tmp_path / "more.zarr"), make_random())
    with pytest.raises(ConfigError, match="rows was 100, is 101; data was"):
        more.load_state_dict(state)
    held = [Loader(batch_sampler=make_random()).add_dataset(np.ones((30, 2), dtype)) for dtype in ("f4", "f4", "f8")]
    next(iter(held[0]))
    held[1].load_state_dict(held[0].state_dict())
    with pytest.raises(ConfigError, match="data was"):
        held[2].load_state_dict({**held[0].state_dict(), "batches": 1})
    with pytest.raises(ConfigError, match="use_collection"):
        Loader(batch_sampler=make_random()).state_dict()


def test_own_samplers_that_tell_go_on(store, caplog, monkeypatch):
    """Told settings and self.rng are enough. Others are named when they are saved inside an epoch, and when loaded."""
    monkeypatch.setattr(notices, "_said", set())
    for sampler in (Telling, lambda: ranks(0, Telling())):
        loader = make(store, sampler())
        rows = iter(loader)
        for _ in range(4):
            next(rows)
        again = make(store, sampler())
        again.load_state_dict(through_json(loader))
        assert [shown(batch) for batch in again] == [shown(batch) for batch in rows]
    assert not caplog.records
    loader = make(store, Drawing())
    next(iter(loader))
    for _ in range(2):
        state = through_json(loader)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Drawing does not declare" in record.message
    with pytest.raises(ConfigError, match="order="):
        make(store, Drawing()).load_state_dict(state)


def test_a_class_that_draws_in_its_own_way_has_settings_of_its_own(store):
    """What it inherits says nothing about its batches."""

    class Own(RandomSampler):
        def _sample(self, n_obs):
            yield from [{"requests": [slice(0, n_obs)]}]

    loader = make(store, Own(3, 4, 6, rng=0))
    next(iter(loader))
    assert loader.state_dict()["sampler"] is None


def test_where_the_position_lies(store):
    """That of the newest pass, also left early; another epoch, or generator, begins at 0; the same epoch keeps it."""
    loader = make(store, make_random())

    def position():
        state = loader.state_dict()
        return state["epoch"], state["batches"]

    assert position() == (0, 0)
    older = iter(loader)
    next(older)
    for _, _batch in zip(range(2), loader, strict=False):
        pass
    next(older)
    assert position() == (1, 2)
    state = loader.state_dict()
    loader.set_epoch(1)
    assert position() == (1, 0)
    loader.load_state_dict(state)
    loader.batch_sampler.set_epoch(1)  # as loops do that find a sampler
    assert position() == (1, 2)
    assert loader.num_left == len(loader) - 2
    assert len(list(loader)) == len(loader) - 2
    assert loader.num_left == len(loader)
    assert position() == (2, 0)
    loader.load_state_dict(state)
    loader.set_epoch(5)
    assert position() == (5, 0)
    assert len(list(loader)) == len(loader)
    loader.batch_sampler.rng = 1
    assert position() == (0, 0)


def test_states_that_are_none(store):
    """Those of other versions, of ordered loaders, with wrong values, or of more batches than there are."""
    loader = make(store, make_random())
    next(iter(loader))
    state = loader.state_dict()
    for wrong, said in [
        ({**state, "version": 2}, "version 2"),
        ({"epoch": 0}, "batches, data, epoch"),
        ({"version": 1, "recipe": "a"}, "position of a loader with order="),
        ({**state, "batches": -1}, "batches in the state of a loader must be an integer"),
        ({**state, "batches": 18}, "an epoch has 17 batches here"),
    ]:
        with pytest.raises(ConfigError, match=said):
            loader.load_state_dict(wrong)


def test_positions_of_workers_are_not_known_here(store):
    """The process that started them is told so, until an epoch is chosen; nor can they share what was loaded."""
    loader = make(store, make_random())
    kept = loader.state_dict()
    batches = DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert sum(1 for _ in batches) == 17
    with pytest.raises(ConfigError, match=r"num_workers=0.*order="):
        loader.state_dict()
    loader.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1
    loader.load_state_dict({**kept, "batches": 3})
    with pytest.raises(ConfigError, match="cannot be shared among DataLoader workers"):
        list(batches)
    loader.load_state_dict({**kept, "epoch": 4})
    seen = [[batch["index"].tolist() for batch in batches] for _ in range(2)]
    assert seen[0] != seen[1]
    loader.set_epoch(4)
    assert [batch["index"].tolist() for batch in loader] == seen[0]


class InWorker(IterableDataset):
    """Hands out the batches of a loader with the state after each; begins at a state."""

    def __init__(self, loader, states=None):
        self.loader, self.states = loader, states

    def __iter__(self):
        from torch.utils.data import get_worker_info

        if self.states is not None:
            self.loader.load_state_dict(self.states[get_worker_info().id])
        for batch in self.loader:
            yield get_worker_info().id, batch["index"].tolist(), self.loader.state_dict()


def test_a_worker_goes_on_where_it_was(store):
    """Each saves its own, the draws of its epoch included, and goes on in a worker of that number, among as many."""

    def run(states=None, workers=2):
        dataset = InWorker(make(store, ranks(1, RandomSampler(3, 2, 3))), states)
        shown = [[], []]
        options = {"multiprocessing_context": "fork"} if workers else {}
        for number, rows, state in DataLoader(dataset, batch_size=None, num_workers=workers, **options):
            shown[number].append((rows, state))
        return shown

    before = run()
    stops = (3, 1)
    states = [shown[stop - 1][1] for shown, stop in zip(before, stops, strict=True)]
    after = run(states)
    for number, stop in enumerate(stops):
        assert [rows for rows, _ in after[number]] == [rows for rows, _ in before[number][stop:]]
    with pytest.raises(ConfigError, match="worker was 0 of 2"):
        make(store, ranks(1, RandomSampler(3, 2, 3))).load_state_dict(states[0])


def test_a_checkpoint_keeps_it(store, tmp_path):
    """A loader is a part of a checkpoint like any other."""
    loader = make(store, make_random())
    rows = iter(loader)
    next(rows)
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    checkpoints.save(1, {"loader": loader})
    again = make(store, make_random())
    checkpoints.restore({"loader": again})
    assert [shown(batch) for batch in again] == [shown(batch) for batch in rows]
