"""A loader that begins before it is iterated, and nobody can tell but by the clock."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport
from rankwise.data.samples import SampleLoader
from rankwise.errors import ConfigError, DataError
from rankwise.testing.endings import run_endings
from rankwise.testing.new_threads import threads_end, threads_since
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource
from rankwise.world import World


class Noted(FreeSource):
    """Fifty samples that are their ids; notes which steps are read, and fails where it is told to."""

    fingerprint, num_samples, chunk_samples = "noted", 50, 1
    stateless = True

    def __init__(self, *, together=False, unread=None):
        self.group_steps, self.unread = together, unread
        self.fields = {"x": FieldSpec(shape=(2,), dtype=np.dtype("i8"))}
        self.read_steps = []
        self.reads, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()

    def plan(self, share):
        return FreePlan(share)

    def hint(self, plan):
        pass

    def read(self, plan, into):
        self.reads.set()
        assert self.may_read.wait(60)
        share = plan.share
        if share.step.epoch == self.unread:
            raise DataError("no bytes")
        into.reserve(self.fields, share.num_samples, {})
        into.arrays("x")[0][:] = share.ids[:, None]
        self.read_steps.append((share.step.epoch, share.step.index))
        return ReadReport(valid=np.ones(share.num_samples, dtype=np.bool_))


def loader(source=None, *, depth=3, **options):
    """Seven steps of up to 8 samples."""
    return loader_of(source or Noted(), Order(50, batch_size=8), depth=depth, **options)


def shown(mine, *, stop_after=None):
    """Epoch, number and samples of each step that an iteration brings; each is marked done."""
    found = []
    for (batch,) in mine:
        np.testing.assert_array_equal(batch["x"][:, 0], batch.ids)
        found.append((batch.share.step.epoch, batch.share.step.index, batch.ids.tolist()))
        mine.mark_done(batch.resume)
        if len(found) == stop_after:
            break
    return found


@pytest.mark.parametrize(("together", "ready", "whole"), [(False, [0, 1, 2], [*range(7)]), (True, [0], [0, 3, 6])])
def test_the_first_steps_are_there_when_they_are_asked_for(together, ready, whole):
    """As many as may lie ready are read, or one window, and the thread ends; the iteration reads them no more."""
    source = Noted(together=together)
    mine = loader(source, across_epochs=False)
    assert mine.start_prefetch()
    assert threads_end("rankwise-reader")
    assert source.read_steps == [(0, index) for index in ready]
    assert mine.stats.steps == 0
    assert shown(mine) == shown(loader())
    assert source.read_steps == [(0, index) for index in whole]  # and nothing of another epoch


def test_it_returns_while_nothing_is_read_yet():
    """Who calls it does not wait for the storage."""
    source = Noted()
    source.may_read.clear()
    mine = loader(source)
    assert mine.start_prefetch()
    assert source.read_steps == []
    source.may_read.set()
    assert len(shown(mine)) == 7


def test_calling_it_again_changes_nothing():
    """Before, between and after epochs; what is read ahead already is what it would read."""
    source = Noted()
    mine = loader(source)
    for epoch in range(3):
        for _ in range(2):
            assert mine.start_prefetch()
            assert threads_end("rankwise-reader")
            assert source.read_steps[7 * epoch :] == [(epoch, index) for index in range(3)]
        assert [(number, index) for number, index, _ in shown(mine)] == [(epoch, index) for index in range(7)]
        assert threads_end("rankwise-reader")


def moved(mine, how, saved):
    """Change where the loader stands."""
    if how == "epoch":
        mine.set_epoch(3)
    elif how == "done":
        mine.mark_done(saved)
    else:
        mine.load_state_dict(saved.to_json())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("how", ["epoch", "done", "load"])
def test_what_is_not_asked_for_is_dropped(how, again):
    """The next iteration brings what it brings without; one more call reads anew, from the new place."""
    with_it, without = loader(), loader()
    state = with_it.order.step(with_it.order.step(with_it.order.start(2)).resume).resume
    assert with_it.start_prefetch()
    assert threads_end("rankwise-reader")
    for mine in (with_it, without):
        moved(mine, how, state)
    if again:
        assert with_it.start_prefetch()
        assert threads_end("rankwise-reader")
        place = (3, 0) if how == "epoch" else (2, 2)
        assert with_it.source.read_steps[3] == place
    assert with_it.state_dict() == without.state_dict()
    assert shown(with_it) == shown(without)
    assert with_it.state_dict() == without.state_dict()
    assert threads_end("rankwise-reader")
    steps = with_it.source.read_steps[3:]
    assert len(steps) == len(set(steps))  # each once, but for those that were dropped


def test_the_middle_of_an_epoch():
    """After an epoch that was left early it begins behind the last step that is done."""
    mine = loader(across_epochs=False)
    first = shown(mine, stop_after=2)
    assert threads_end("rankwise-reader")
    mine.source.read_steps.clear()
    assert mine.start_prefetch()
    assert threads_end("rankwise-reader")
    assert mine.source.read_steps == [(0, 2), (0, 3), (0, 4)]
    assert first + shown(mine) == shown(loader())
    assert mine.source.read_steps == [(0, index) for index in range(2, 7)]


def test_memory_is_that_of_an_iteration():
    """Steps that are read early lie in the depth + 1 buffers of all others, dropped or not."""
    mine, places = loader(across_epochs=False), set()
    for epoch in (0, 0, 1, 2):
        assert mine.start_prefetch()
        assert threads_end("rankwise-reader")
        mine.set_epoch(epoch)
        places |= {batch["x"].ctypes.data for (batch,) in mine if batch.count == 8}  # the short last one grows
    assert 2 <= len(places) <= 4


@pytest.mark.parametrize("together", [False, True])
def test_errors_wait_for_the_iteration(together):
    """A first epoch that cannot be read fails when it is iterated, each time; another one does not."""
    mine = loader(Noted(together=together, unread=0))
    for _ in range(2):
        assert mine.start_prefetch()
        assert threads_end("rankwise-reader")
        with pytest.raises(DataError, match="no bytes") as caught:
            shown(mine)
        assert "while reading step 0 of epoch 0" in caught.value.__notes__[0]
    assert mine.start_prefetch()
    mine.set_epoch(1)
    assert len(shown(mine)) == 7


def test_transforms_wait_for_the_iteration():
    """What a transform does may be settled after the call."""
    factor, called = 1, []

    def scaled(fields, key):
        called.append(key)
        return {"x": fields["x"] * factor}

    mine = loader(transform=scaled, across_epochs=False)
    assert mine.start_prefetch()
    assert threads_end("rankwise-reader")
    assert (called, mine.source.read_steps) == ([], [(0, 0)])
    factor = 5
    for (batch,) in mine:
        np.testing.assert_array_equal(batch["x"][:, 0], 5 * batch.ids)
    assert len(called) == 50


@pytest.mark.parametrize("why", ["depth", "may change", "under way"])
def test_where_nothing_is_read_early(why):
    """With no thread, where the source may change, and beside an iteration; the answer tells."""
    source = Noted()
    source.stateless = why != "may change"
    mine = SampleLoader(
        source, order=Order(50, batch_size=8), device=None, depth=3 * (why != "depth"), world=World.single()
    )
    steps = iter(mine)
    if why == "under way":
        next(steps)
    assert not mine.start_prefetch()
    steps.close()
    assert threads_end("rankwise-reader")
    assert source.read_steps == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)][: len(source.read_steps)]
    assert bool(source.read_steps) == (why == "under way")
    source.stateless = False
    assert loader(source, across_epochs=True).start_prefetch()  # the user says that it does not matter


def no_thread(self):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("fails", ["start_prefetch", "iteration"])
def test_a_system_without_threads(monkeypatch, fails):
    """Who asks is told that no thread can be started; once one can, all steps come."""
    mine = loader()
    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            mine.start_prefetch() if fails == "start_prefetch" else next(iter(mine))
    assert shown(mine) == shown(loader())


def test_closed_loaders_refuse():
    """As iterating does, with the same words."""
    mine = loader()
    assert mine.start_prefetch()
    mine.close()
    assert not threads_since("rankwise-reader")
    with pytest.raises(ConfigError, match="closed"):
        mine.start_prefetch()


@pytest.mark.parametrize("way", ["close", "forget", "cycle"])
def test_ending_it_while_it_reads(way, caplog):
    """Closing waits for the thread. Forgetting the loader does not, in whichever thread it is; nothing is left."""
    source = Noted()
    source.may_read.clear()
    mine = SampleLoader(source, order=Order(50, batch_size=8), device=None, depth=3, world=World.single())
    assert mine.start_prefetch()
    assert source.reads.wait(60)
    if way == "cycle":
        mine.itself = mine
    if way == "close":
        threading.Timer(0.05, source.may_read.set).start()
        mine.close()
        assert not threads_since("rankwise-reader")
    del mine
    gc.collect()
    if way != "close":
        assert threads_since("rankwise-reader")  # its read goes on, and nobody has waited for it in vain
        assert not caplog.records
        source.may_read.set()
    assert threads_end("rankwise-reader")
    assert len(source.read_steps) == 1


IMPORTS = """
import atexit, importlib.util, os, threading, warnings
import torch
spec = importlib.util.spec_from_file_location("here", {file!r})
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
"""
SCRIPT = """
atexit.register(lambda: print(bool(source.read_steps)))  # the first one: called last
warnings.simplefilter("ignore")
mine = here.loader(across_epochs=False)
source = mine.source
source.may_read.clear()
assert mine.start_prefetch()
assert source.reads.wait(60)
"""
EXITS = """
timer = threading.Timer(0.2, source.may_read.set)
timer.daemon = True  # else the interpreter waits for it first
timer.start()
print("exits")
"""
FORGETS = f"del mine{EXITS}"
FORKS = """
mine.source.may_read.set()
assert here.threads_end("rankwise-reader")
child = os.fork()
if child == 0:
    os._exit(len(here.shown(mine)) * 10 + len(mine.source.read_steps))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(here.shown(mine)))
"""


def test_exits_and_forks_behind_it():
    """The interpreter exits while it reads, and waits for that, forgotten or not; a fork reads its epoch itself."""
    imports = IMPORTS.format(file=str(Path(__file__).resolve()))
    dones = run_endings(imports, [SCRIPT + then for then in (EXITS, FORGETS, FORKS)])
    assert [(done.returncode, done.stderr) for done in dones] == [(0, "")] * 3
    assert [done.stdout for done in dones] == ["exits\nTrue\n", "exits\nTrue\n", f"{70 + 3 + 7} 7\nTrue\n"]
