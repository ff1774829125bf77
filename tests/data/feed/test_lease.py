"""Leases, and buffers of which several batches have their parts."""

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest

from rankwise.data.contract import FieldSpec
from rankwise.data.feed.memory import pool as memory_module
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.lease import Lease, Leases
from rankwise.data.feed.memory.pool import MemoryPool, allocate_bytes
from rankwise.errors import ConfigError

SPECS = {
    "x": FieldSpec(shape=(2,), dtype=np.dtype("f4")),
    "rows": FieldSpec(shape=(9,), dtype=np.dtype("f8"), ragged=True),
}
LENGTHS = [2, 0, 3, 1, 0, 2]


def filled(memory=None, lease=None):
    """A buffer of six samples: x is their number twice, the row of sample s has s in its first columns."""
    whole = HostBuffer(memory, lease=lease)
    whole.reserve(SPECS, len(LENGTHS), {"rows": sum(LENGTHS)})
    whole.arrays("x")[0][:] = np.arange(6)[:, None]
    data, indices, indptr = whole.arrays("rows")
    indptr[:] = np.concatenate([[0], np.cumsum(LENGTHS)])
    data[:] = np.repeat(np.arange(6), LENGTHS)
    indices[:] = np.concatenate([np.arange(count) for count in LENGTHS])
    return whole


def values(lent):
    return [array.tolist() for name in SPECS for array in lent.arrays(name)]


class Event:
    def __init__(self, waited):
        self._waited = waited

    def synchronize(self):
        self._waited.append(self)


def test_parts_lie_in_the_buffer():
    """Values are views of it; row pointers begin at 0."""
    whole = filled()
    part = whole.part(2, 5)
    assert values(part) == [[[2, 2], [3, 3], [4, 4]], [2, 2, 2, 3], [0, 1, 2, 0], [0, 3, 4, 4]]
    assert np.shares_memory(part.arrays("x")[0], whole.arrays("x")[0])
    assert all(np.shares_memory(part.arrays("rows")[k], whole.arrays("rows")[k]) for k in (0, 1))
    assert part.num_bytes == 24 + 32 + 16 + 16


def test_rows_of_a_part_move_within_it():
    """What is dropped from one leaves its neighbours as they are."""
    shared = filled()
    one, other = shared.part(0, 3), shared.part(3, 6)
    one.keep(np.array([False, True, True]))
    assert values(one) == [[[1, 1], [2, 2]], [2, 2, 2], [0, 1, 2], [0, 0, 3]]
    assert values(other) == [[[3, 3], [4, 4], [5, 5]], [3, 5, 5], [0, 0, 1], [0, 1, 1, 3]]


def test_a_copy_of_a_part():
    """All fields, in memory of their own."""
    whole, into = filled(), HostBuffer()
    part = whole.part(2, 5)
    part.copy_to(into, SPECS, 3)
    copied = values(into)
    assert copied == values(part)
    whole.arrays("x")[0][:] = 7
    assert values(into) == copied


def told_by(told, number=0):
    """A lease that notes what it tells: 0 = it was left, 1 = it has ended."""
    return Lease(number, lambda news: told.append(news[0]))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_a_buffer_is_left_with_its_last_part(order):
    """Who lends is one of its users; leaving twice changes nothing."""
    told = []
    lease = told_by(told)
    shared = filled(lease=lease)
    users = [shared.give_back, shared.part(0, 3).give_back, shared.part(3, 6).give_back]
    for number in order:
        assert told == []
        users[number]()
    users[1]()
    assert told == [0]


def test_the_lease_ends_with_the_last_view_of_any_part():
    """A slice of one part keeps the memory of all that was read with it, and nothing else does."""
    told, memory = [], MemoryPool()
    lease = told_by(told)
    shared = filled(memory, lease)
    parts = [shared.part(0, 3), shared.part(3, 6)]
    del lease
    view = parts[1].arrays("x")[0][1:].T
    for part in parts:
        part.give_back()
    shared.give_back()
    del shared, parts, part
    assert told == [0]
    filled(memory).arrays("x")[0][:] = -1
    assert view.tolist() == [[4, 5], [4, 5]]
    del view
    assert told == [0, 1]


def test_it_is_filled_again_when_all_consumers_are_done():
    """Each part may have something to wait for; the memory waits for all of these."""
    memory, waited, lease = MemoryPool(), [], Lease()
    shared = filled(memory, lease)
    parts = [shared.part(first, first + 2) for first in (0, 2, 4)]
    events = [Event(waited), None, Event(waited)]
    for part, event in zip(parts, events, strict=True):
        part.lease.wait_for(event)
        part.give_back()
    shared.give_back()
    del shared
    assert waited == []
    again = HostBuffer(memory)
    again.reserve({"x": SPECS["x"]}, 6, {})
    assert waited == [events[0], events[2]]


def test_a_part_may_be_too_large():
    """The limit is that of a batch, not that of all that are read together."""
    with pytest.raises(ConfigError, match="at least 172 bytes, but a batch buffer may use 100"):
        filled().part(0, 6, limit_bytes=100)
    assert filled().part(0, 3, limit_bytes=100).num_bytes <= 100


def acquired(leases, limit):
    """A lease that another thread acquires, once it has one."""
    got = []
    thread = threading.Thread(target=lambda: got.append(leases.acquire(limit)))
    thread.start()
    return got, thread


@pytest.mark.parametrize("how", ["dropped", "left_and_dropped", "woken"])
def test_who_acquires_waits_for_the_end_of_a_lease(how):
    """No more than the limit count while nobody waits for the reader; being left alone frees nothing."""
    leases = Leases(is_awaited=lambda: False)
    held = [leases.acquire(2), leases.acquire(2)]
    got, thread = acquired(leases, 2)
    if how != "dropped":
        held[1].leave()
        leases.wake()
    thread.join(0.05)
    assert (got, len(leases._out)) == ([], 2)
    held.pop()
    thread.join(20)
    assert len(got) == 1
    assert len(leases._out) == 2


def test_what_is_kept_counts_no_more_once_somebody_waits():
    """Whoever waits for the reader is not waited for: a batch that was left and is kept is read beside."""
    awaited = []
    leases = Leases(is_awaited=lambda: bool(awaited))
    held = [leases.acquire(2), leases.acquire(2)]
    held[0].leave()
    got, thread = acquired(leases, 2)
    thread.join(0.05)
    assert got == []
    awaited.append(True)
    leases.wake()
    thread.join(20)
    assert len(got) == 1
    held[1].leave()
    assert leases.acquire(2) is not None  # from now on leases count until they are left


def test_a_batch_in_use_is_waited_for_whoever_waits():
    """What was not left yet counts: two consumers, one of which has the batch."""
    leases = Leases(is_awaited=lambda: True)
    held = leases.acquire(1)
    got, thread = acquired(leases, 1)
    thread.join(0.05)
    assert got == []
    held.leave()
    thread.join(20)
    assert len(got) == 1


def test_no_room_is_an_error_or_a_wait():
    """Where kept batches fill what is allowed, who must wait for ever is told, or waits for one to be dropped."""
    for error in (MemoryError, None):
        leases = Leases(has_room=lambda: False, no_room=error)
        held = leases.acquire(1)
        held.leave()
        if error is not None:
            with pytest.raises(error):
                leases.acquire(1)
            continue
        got, thread = acquired(leases, 1)
        thread.join(0.05)
        assert got == []
        del held
        thread.join(20)
        assert len(got) == 1


def test_closing_lets_waiters_go():
    """Who waits when it is closed gets nothing, and so does who comes later."""
    leases = Leases(is_awaited=lambda: False)
    held = leases.acquire(1)
    got, thread = acquired(leases, 1)
    leases.close()
    thread.join(20)
    assert got == [None]
    del held
    assert leases.acquire(1) is None


def test_leases_end_in_the_midst_of_a_collection(monkeypatch):
    """Cycles end leases and give memory back wherever the collector runs, also inside of what hands them out."""
    collected, dropped = [], []

    def collect(*args, **options):
        collected.append(gc.collect())
        while any(reference() is not None for reference in dropped):
            time.sleep(
                0.001
            )  # a thread that an earlier test left behind collects: then this thread's call does nothing
            gc.collect()
        return allocate_bytes(*args, **options) if args else False

    monkeypatch.setattr(memory_module, "allocate_bytes", collect)  # called with the lock of the pool
    leases, memory = Leases(is_awaited=collect), MemoryPool()
    for _ in range(3):
        lease = leases.acquire(1)
        cycle = [HostBuffer(memory, lease=lease)]
        cycle[0].reserve(SPECS, 5, {"rows": 5})
        cycle.append(cycle)
        dropped.append(weakref.ref(cycle[0]))
        del cycle, lease
    assert len(leases._out) == 1
    assert len(collected) >= 3
    HostBuffer(memory).reserve(SPECS, 500, {"rows": 500})
    assert memory.num_pieces <= 2 * 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gives_nothing_back():
    """Finalizers of a child neither wait for a lock of the parent nor change what the parent has."""
    leases, memory = Leases(is_awaited=lambda: False), MemoryPool()
    buffer = HostBuffer(memory, lease=leases.acquire(1))
    buffer.reserve(SPECS, 3, {"rows": 3})
    view = buffer.arrays("x")[0][1:]
    view[:] = 7
    buffer.give_back()
    del buffer
    got, thread = acquired(leases, 1)  # waits, as a reader does
    with memory._lock:
        child = os.fork()
        if child == 0:
            del view
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    other = HostBuffer(memory)
    other.reserve(SPECS, 3, {"rows": 3})
    other.arrays("x")[0][:] = 1
    assert (view == 7).all()
    assert got == []
    del view
    thread.join(20)
    assert len(got) == 1
