"""The first load request of the next pass is read at the end of this one, and nobody can tell but by the clock."""

import copy
import pickle
import weakref
from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankwise.data.rows import Loader
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler, SequentialSampler
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.new_threads import threads_end
from rankwise.testing.stores.hundred_rows import hundred_obs, loader_of_hundred, rows_of


def test_one_request_more_is_read_and_used(hundred, reads):
    """At the end of a pass of 5 requests the next one's first is there; over 3 passes each is read once."""
    loader = loader_of_hundred(hundred)
    for number in range(3):
        shown = rows_of(loader)
        assert sorted(chain.from_iterable(shown)) == list(range(100))
        assert threads_end("rankwise-reader")
        assert len(reads) == 5 * (number + 1) + 1
        assert [row for request in reads[5 * number :][:5] for row in request] == [*chain.from_iterable(shown)]


def test_nothing_follows_the_last_pass(hundred, reads):
    """Who says that it is the last one is believed, for one pass."""
    loader = loader_of_hundred(hundred)
    for number in range(3):
        if number == 1:
            loader.expect_last_epoch()
        rows_of(loader)
        assert threads_end("rankwise-reader")
    assert len(reads) == 3 * 5 + 1


@pytest.mark.parametrize("why", ["off", "own", "memory", "worker"])
def test_where_it_could_be_seen_nothing_is_read_early(hundred, reads, why):
    """Switched off, with a sampler that others wrote, with data in memory, and in the worker of a DataLoader."""

    class Own(RandomSampler):
        pass

    if why == "worker":
        loader = torch.utils.data.DataLoader(
            loader_of_hundred(hundred), batch_size=None, num_workers=1, multiprocessing_context="fork"
        )
        assert sorted(chain.from_iterable(batch["index"].tolist() for batch in loader)) == list(range(100))
        return
    loader = loader_of_hundred(hundred, Own(5, 4, 10, rng=0) if why == "own" else None, across_epochs=why != "off")
    if why == "memory":
        loader = Loader(batch_sampler=RandomSampler(5, 4, 10, rng=0), return_index=True)
        loader.add_dataset(np.arange(600, dtype="f4").reshape(100, 6), obs=hundred_obs())
    rows_of(loader)
    assert threads_end("rankwise-reader")
    assert len(reads) == (0 if why == "memory" else 5)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(1, 10)),
        st.tuples(st.just("set"), st.integers(0, 3)),
        st.tuples(st.just("seed"), st.integers(0, 2)),
        st.tuples(st.just("mask"), st.integers(0, 60)),
        st.tuples(st.just("second"), st.integers(1, 5)),
        st.tuples(st.just("copy"), st.just(0)),
        st.tuples(st.just("save"), st.integers(0, 10)),
        st.tuples(st.just("within"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["settle", "start"]), st.just(0)),
    ),
    min_size=2,
    max_size=8,
)
SAMPLERS = {
    "random": lambda rng: RandomSampler(5, 4, 10, rng=rng),
    "sequential": lambda rng: SequentialSampler(5, 4, 10),
    "rank": lambda rng: DistributedSampler(RandomSampler(5, 4, 10, rng=rng), dist_info=lambda: (1, 2)),
}


def acted(loader, rng, what, value, seen, *, early):
    """Do one thing with a loader, note what it shows, and return what to go on with."""
    sampler = loader.batch_sampler
    if what == "pass":
        seen.append(rows_of(loader))
    elif what == "leave":
        batches = iter(loader)
        seen.append(rows_of(batch for _, batch in zip(range(value), batches, strict=False)))
        batches.close()
    elif what == "set":
        loader.set_epoch(value)
    elif what == "mask":
        sampler.mask = slice(value, 100)
    elif what == "second":
        outer = iter(loader)
        first = next(outer, None)
        seen += [first and first["index"].tolist(), rows_of(loader), rows_of(outer)]
    elif what == "save":
        seen.append(rows_of(batch for _, batch in zip(range(value), loader, strict=False)))
        seen.append(loader.state_dict())
        loader.load_state_dict(seen[-1])
    elif what == "copy":
        return pickle.loads(pickle.dumps(copy.copy(loader)))
    elif what == "settle":
        assert threads_end("rankwise-reader")
    elif what == "start":
        assert not early or loader.start_prefetch() or loader.num_left == 0
    elif sampler.rng is not None:
        for batch in [None] if what == "seed" else loader:
            seen.append(batch and batch["index"].tolist())
            sampler.rng = np.random.default_rng(value) if value else rng
    return loader


def played(hundred, kind, actions, *, across_epochs):
    """All that a user sees of a loader that is used so, and the state in which his generator is left."""
    rng = np.random.default_rng(5)
    loader = loader_of_hundred(hundred, SAMPLERS[kind](rng), across_epochs=across_epochs)
    seen = []
    for what, value in actions:
        try:
            loader = acted(loader, rng, what, value, seen, early=across_epochs)
        except ConfigError as error:  # a saved place that there is not in another range of rows
            seen.append(str(error))
        own = loader.batch_sampler.rng
        seen.append((len(loader), loader.batch_sampler.epoch, own and own.bit_generator.state, rng.bit_generator.state))
    return seen


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(SAMPLERS)), actions=ACTIONS)
@example(kind="rank", actions=[("save", 2), ("mask", 41), ("start", 0)])  # nothing is left then
@example(kind="rank", actions=[("save", 2), ("mask", 41), ("second", 1)])
def test_all_that_users_see_is_as_without(hundred, kind, actions):
    """Rows, tables, lengths and generators, whatever is done with a loader between its passes."""
    assert played(hundred, kind, actions, across_epochs=True) == played(hundred, kind, actions, across_epochs=False)


def test_data_that_are_added_later(hundred, reads):
    """What was read before is forgotten, even where the next pass begins with the same rows."""
    loader = loader_of_hundred(hundred, SequentialSampler(5, 4, 10))
    rows_of(loader)
    assert threads_end("rankwise-reader")
    loader.add_dataset(zarr.open_array(hundred, mode="r"), obs=hundred_obs())
    shown = [batch["index"].tolist() for batch in loader]
    assert [*chain.from_iterable(shown)] == list(range(200))
    assert threads_end("rankwise-reader")
    assert [request[0] for request in reads] == [0, 20, 40, 60, 80, 0, *range(0, 200, 20), 0]


def test_tables_may_change_between_passes(hundred):
    """What obs says is looked up when its pass is asked for."""
    obs = pd.DataFrame({"n": np.zeros(100)})
    loader = Loader(batch_sampler=SequentialSampler(5, 4, 10)).add_dataset(zarr.open_array(hundred, mode="r"), obs=obs)
    for number in range(3):
        obs["n"] = float(number)
        assert all((batch["obs"]["n"] == number).all() for batch in loader)


def rows_drawn(seed):
    """Rows of the first two passes of a sampler that draws 20."""
    sampler = RandomSampler(10, 2, 10, num_samples=20, rng=seed)
    requests = [next(sampler.sample(100)) for _ in range(2)]
    return [{row for run in request["requests"] for row in range(run.start, run.stop)} for request in requests]


def test_damage_is_told_in_its_pass(tmp_path, reads):
    """A pass over whole rows is whole, though the one after it, which was read ahead, is not: it says so itself."""
    array = zarr.create_array(str(tmp_path / "X"), data=np.arange(600, dtype="f4").reshape(100, 6), chunks=(10, 6))
    (tmp_path / "X" / "c" / "0" / "0").write_bytes(b"broken")
    seed = next(s for s in range(99) if not rows_drawn(s)[0] & set(range(10)) and rows_drawn(s)[1] >= set(range(10)))
    loader = Loader(batch_sampler=RandomSampler(10, 2, 10, num_samples=20, rng=seed)).add_dataset(array)
    for epoch in (0, 0, 1, 0):
        loader.set_epoch(epoch)
        if epoch:
            with pytest.raises(SampleError, match="is damaged"):
                list(loader)
        else:
            assert len(list(loader)) == 2
            assert threads_end("rankwise-reader")
            assert set(range(10)) <= set(reads[-1])


def test_a_loader_that_is_forgotten_leaves_nothing(hundred, reads):
    """Between two passes nothing holds it but who made it; its thread ends with it, and so does its memory."""
    loader = loader_of_hundred(hundred)
    rows_of(loader)
    memory = weakref.ref(reads.readers[0])
    del loader
    assert threads_end("rankwise-reader")
    reads.readers.clear()
    assert memory() is None
    assert len(reads) <= 6
