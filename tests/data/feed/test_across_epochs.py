"""Reading goes on over the end of an epoch, and nobody can tell but by the clock."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport
from rankwise.errors import ConfigError, DataError, SampleError
from rankwise.testing.endings import run_endings
from rankwise.testing.new_threads import threads_end, threads_since
from rankwise.testing.patience import until
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource


class Noted(FreeSource):
    """Samples that are functions of id and epoch; notes which steps are read, and fails where it is told to."""

    fingerprint = "noted"
    chunk_samples = 1
    stateless = True

    def __init__(self, num_samples=50, *, together=False, damaged=(), unplanned=(), unread=()):
        self.num_samples, self.group_steps = num_samples, together
        self.damaged, self.unplanned, self.unread = damaged, unplanned, unread  # damaged: (epoch, id); else epochs
        self.fields = {"x": FieldSpec(shape=(2,), dtype=np.dtype("i8"))}
        self.read_steps = []
        self.may_read = threading.Event()
        self.may_read.set()

    def plan(self, share):
        if share.step.epoch in self.unplanned:
            raise DataError("no plan")
        return FreePlan(share)

    def hint(self, plan):
        pass

    def read(self, plan, into):
        assert self.may_read.wait(20)
        share, epoch = plan.share, plan.share.step.epoch
        if epoch in self.unread:
            raise DataError("no bytes")
        into.reserve(self.fields, share.num_samples, {})
        into.arrays("x")[0][:] = np.stack([share.ids, share.ids * (epoch + 1)], axis=1)
        self.read_steps.append((epoch, share.step.index))
        bad = [place for place, sample in enumerate(share.ids.tolist()) if (epoch, sample) in self.damaged]
        valid = np.ones(share.num_samples, dtype=np.bool_)
        valid[bad] = False
        ids = [int(share.ids[place]) for place in bad]
        errors = tuple(SampleError(f"sample {s} is broken", sample=s, place="chunk 1", damage=True) for s in ids)
        return ReadReport(valid=valid, errors=errors)


def loader(source=None, *, batch_size=8, kind=None, **options):
    source = source or Noted()
    return loader_of(source, Order(source.num_samples, batch_size=batch_size, kind=kind), **options)


def shown(mine, *, stop_after=None, mark=True):
    """What an iteration brings: of each step epoch, number and samples, which must be right."""
    found = []
    for batches in mine:
        for batch in batches:
            step = batch.share.step
            np.testing.assert_array_equal(batch["x"], np.stack([batch.ids, batch.ids * (step.epoch + 1)], axis=1))
            found.append((step.epoch, step.index, batch.ids.tolist(), batch.key.tolist()))
        if mark:
            mine.mark_done(batches[-1].resume)
        if len(found) == stop_after:
            break
    return found


def readers():
    return threads_since("rankwise-reader")


def steps_of(source, epoch):
    return [index for number, index in source.read_steps if number == epoch]


@pytest.mark.parametrize(("together", "ready"), [(False, [0, 1, 2]), (True, [0])])
def test_the_next_epoch_is_read_while_this_one_is_in_use(together, ready):
    """As many steps as may lie ready, or one window, are read while the last step is held; then the thread ends."""
    source = Noted(together=together)
    mine = loader(source, depth=3)
    for number, (batch,) in enumerate(mine):
        if number == 6:
            assert until(lambda: steps_of(source, 1) == ready)
        mine.mark_done(batch.resume)
    assert until(lambda: steps_of(source, 1) == ready)
    assert until(lambda: not readers())
    second = shown(mine)
    assert [index for _, index, _, _ in second] == list(range(7))
    assert steps_of(source, 1) == (list(range(7)) if not together else [0, 3, 6])  # each once


def test_memory_is_that_of_one_epoch():
    """The same depth + 1 buffers serve epoch after epoch, and one while the last batch of an epoch is looked at."""
    mine = loader(Noted(400), depth=3)
    places = set()
    for epoch in range(4):
        mine.set_epoch(epoch)
        places |= {batch["x"].ctypes.data for (batch,) in mine}
    assert len(places) <= 5


def test_sources_that_may_change_are_read_when_asked():
    """Without ``stateless`` nothing is read before its epoch is asked for, unless the user says so."""
    for across_epochs, wanted in ((None, []), (True, [0, 1]), (False, [])):
        source = Noted()
        source.stateless = False
        mine = loader(source, depth=2, across_epochs=across_epochs)
        shown(mine)
        assert until(lambda: not readers())
        assert steps_of(source, 1) == wanted, across_epochs
    source = Noted()
    mine = loader(source, depth=0)
    shown(mine)
    assert steps_of(source, 1) == []


def test_nothing_follows_the_last_epoch():
    """Who says that it is the last one is believed, for one iteration."""
    source = Noted()
    mine = loader(source, depth=2)
    mine.expect_last_epoch()
    shown(mine)
    assert until(lambda: not readers())
    assert steps_of(source, 1) == []
    shown(mine)
    assert until(lambda: steps_of(source, 2) == [0, 1])


@pytest.mark.parametrize("kind", ["sequential", "shuffle"])
def test_the_same_epoch_again(kind):
    """Held-out data, which nobody marks: from the second pass on at the latest the same epoch is foreseen."""
    source = Noted()
    mine = loader(source, depth=2, kind=kind)
    for _ in range(4):
        mine.set_epoch(0)
        found = shown(mine, mark=False)
        assert [(epoch, index) for epoch, index, _, _ in found] == [(0, index) for index in range(7)]
        assert until(lambda: not readers())
    wasted = 0 if kind == "sequential" else 2
    assert len(steps_of(source, 1)) == wasted
    assert len(steps_of(source, 0)) == 4 * 7 + 2


def test_epochs_that_are_set_are_followed():
    """Loops that set epochs and mark nothing get ahead, too."""
    source = Noted()
    mine = loader(source, depth=2)
    for epoch in range(3):
        mine.set_epoch(epoch)
        shown(mine, mark=False)
        assert until(lambda: not readers())
    assert [len(steps_of(source, epoch)) for epoch in range(4)] == [7, 7, 7, 2]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), st.booleans()),
        st.tuples(st.just("leave"), st.integers(1, 7)),
        st.tuples(st.just("set"), st.integers(0, 4)),
        st.tuples(st.just("load"), st.integers(0, 3)),
        st.tuples(st.just("second"), st.integers(1, 5)),
        st.tuples(st.just("fail"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["settle", "start"]), st.just(0)),
    ),
    min_size=2,
    max_size=7,
)


def played(actions, *, settle, **options):
    """Everything that a user sees of a loader that is used so."""
    source = Noted(options.pop("num_samples"), together=options.pop("together"), damaged={(e, 3) for e in range(1, 9)})
    mine = loader(source, on_bad_sample=100, rank=options["world_size"] // 2, **options)
    seen, saved = [], [mine.state_dict()]
    for what, value in actions:
        if what == "set":
            mine.set_epoch(value)
        elif what == "load":
            mine.load_state_dict(saved[value % len(saved)])
        elif what == "settle" and settle:
            assert until(lambda: not readers())
        elif what == "start" and options["across_epochs"]:
            assert mine.start_prefetch()
        try:
            if what == "epoch":
                seen.append(shown(mine, mark=value))
            elif what == "leave":
                seen.append(shown(mine, stop_after=value))
            elif what == "second":
                outer = iter(mine)
                first = next(outer)[0].ids.tolist()
                seen += [first, shown(mine, stop_after=value, mark=False), [b.ids.tolist() for bs in outer for b in bs]]
            elif what == "fail":
                source.unread = (value,)
                seen.append(shown(mine))
        except DataError as error:
            seen.append(str(error))
        source.unread = ()
        saved.append(mine.state_dict())
        seen.append((len(mine), saved[-1], mine.stats.steps, mine.stats.samples, mine.stats.skipped))
    return seen


@settings(max_examples=60, deadline=None)
@given(
    actions=ACTIONS,
    options=st.fixed_dictionaries(
        {
            "num_samples": st.sampled_from([5, 16, 50]),
            "depth": st.integers(1, 4),
            "micro_batch": st.sampled_from([None, 3]),
            "world_size": st.sampled_from([1, 3]),
            "together": st.booleans(),
            "settle": st.booleans(),
        }
    ),
)
@example(  # epochs of one step: each has a window of its own, for more of which there is no memory
    actions=[("epoch", True), ("settle", 0), ("epoch", True)],
    options={"num_samples": 5, "depth": 3, "micro_batch": None, "world_size": 1, "together": True, "settle": True},
)
def test_all_that_users_see_is_as_without(actions, options):
    """Samples, keys, positions, lengths, counts and errors, whatever is done with a loader between its steps."""
    fails = any(what == "fail" for what, _ in actions)
    ahead = played(actions, across_epochs=True, **options)
    if not fails:
        assert ahead == played(actions, across_epochs=False, **options)
    else:  # what was read before the trouble began is there
        assert [one for one in ahead if isinstance(one, str)] in ([], *[["no bytes"] * n for n in range(1, 8)])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("trouble", "said"), [("unplanned", "no plan"), ("unread", "no bytes")])
def test_an_epoch_that_fails_does_so_when_it_is_asked_for(trouble, said, together):
    """The one before it is whole, others are too, and it fails at its first step whenever it is asked for."""
    mine = loader(Noted(together=together, **{trouble: (1,)}), depth=3)
    first = shown(mine)
    assert [index for _, index, _, _ in first] == list(range(7))
    assert until(lambda: not readers())
    for _ in range(2):
        with pytest.raises(DataError, match=said) as caught:
            shown(mine)
        assert "while reading step 0 of epoch 1" in caught.value.__notes__[0]
    mine.set_epoch(2)
    assert [index for _, index, _, _ in shown(mine)] == list(range(7))


def test_damaged_samples_count_in_their_epoch(caplog):
    """Those of an epoch that nobody asks for are neither counted nor told, and use up no budget."""
    damaged = {(1, sample) for sample in range(50)} | {(2, 7)}
    mine = loader(Noted(damaged=damaged), depth=3, on_bad_sample=2)
    shown(mine)
    assert until(lambda: not readers())
    mine.set_epoch(2)
    assert not caplog.records
    found = shown(mine)
    assert sum(len(ids) for _, _, ids, _ in found) == 49
    assert mine.stats.skipped == 1
    assert len(caplog.records) == 1
    mine.set_epoch(1)
    with pytest.raises(SampleError, match="is broken"):
        shown(mine)


@pytest.mark.parametrize("together", [False, True])
def test_transforms_are_called_in_their_epoch(together):
    """What a transform does may change from epoch to epoch: it is not called before its epoch is asked for."""
    called, source = [], Noted(together=together)
    factor = 1

    def noting(fields, key):
        called.append(key)
        return {"x": fields["x"] * factor}

    mine = loader(source, depth=3, transform=noting)
    for epoch in range(3):
        factor = epoch + 1
        assert len(called) == 50 * epoch
        for (batch,) in mine:
            np.testing.assert_array_equal(batch["x"][:, 0], batch.ids * factor)
            mine.mark_done(batch.resume)
        assert until(lambda: not readers())
        assert steps_of(source, epoch + 1) == [0]  # as far as it goes without
    assert mine.stats.read_s < 20


def test_closing_while_the_next_epoch_is_read():
    """Reading stops: the thread that reads for an epoch to come is waited for."""
    source = Noted()
    mine = loader(source, depth=2)
    steps = iter(mine)
    for _ in range(7):
        (batch,) = next(steps)
    assert until(lambda: steps_of(source, 1))
    source.may_read.clear()
    mine.mark_done(batch.resume)
    assert next(steps, None) is None
    threading.Timer(0.05, source.may_read.set).start()
    mine.close()
    assert not readers()
    with pytest.raises(ConfigError, match="closed"):
        next(iter(mine))


@pytest.mark.parametrize("cycle", [False, True])
def test_forgetting_a_loader_ends_its_reading(cycle):
    """Between two epochs nobody but the loader holds the thread: it ends with it."""
    source = Noted()
    mine = loader(source, depth=2)
    steps = iter(mine)
    for _ in range(7):
        next(steps)
    assert until(lambda: steps_of(source, 1) or steps_of(source, 0) == [*range(7), 0])
    source.may_read.clear()
    assert next(steps, None) is None
    if cycle:
        mine.itself = mine
    threading.Timer(0.05, source.may_read.set).start()
    del mine, steps
    gc.collect()
    assert threads_end("rankwise-reader")  # told to end; the collector does not wait for it


IMPORTS = """
import os, sys, threading, warnings
import torch
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
from test_across_epochs import Noted, loader, readers, shown, until
"""
SCRIPT = """
source = Noted(400)
mine = loader(source, depth=2)
first = shown(mine)
"""
EXITS = """
source.may_read.clear()
threading.Timer(0.2, source.may_read.set).start()
"""
FORKS = """
assert until(lambda: len(source.read_steps) >= 51)
child = os.fork()
if child == 0:
    found = shown(mine)
    os._exit(len(found) == 50 and found[0][0] == 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, len(shown(mine)), flush=True)
"""


def test_exits_and_forks_between_epochs():
    """The interpreter exits while the next epoch is read; a forked process reads that epoch itself."""
    imports = IMPORTS.format(folder=str(Path(__file__).parent))
    dones = run_endings(imports, [SCRIPT + then for then in (EXITS, FORKS)])
    assert [(done.returncode, done.stdout, done.stderr) for done in dones] == [(0, "", ""), (0, "1 50\n", "")]
