"""Reads that are under way."""

import threading

import pytest

from rankwise.data.store.remote import PendingReads
from rankwise.errors import DataError


def test_waiting_ends_when_it_is_cancelled():
    """Whoever waits is told; what had arrived in full is still handed out."""
    pending = PendingReads(2)
    pending.deliver([(1, memoryview(b"x"))])
    waiting = threading.Thread(target=pending.cancel)
    waiting.start()
    with pytest.raises(DataError, match="cancelled"):
        pending.result()
    waiting.join(20)
    pending.deliver([(0, None)])
    assert pending.result() == [None, b"x"]


@pytest.mark.parametrize("take", [lambda pending: pending.result(), lambda pending: next(iter(pending))])
def test_a_crash_reaches_whoever_waits(take):
    """An error that is about no piece is raised as it is, never turned into missing data."""
    pending = PendingReads(1)
    pending.crash(MemoryError("no room"))
    with pytest.raises(MemoryError, match="no room"):
        take(pending)


def test_pieces_come_in_the_order_of_arrival():
    """Not in the order they were asked for, and errors among them."""
    pending = PendingReads(3)
    error = DataError("lost")
    pending.deliver([(2, memoryview(b"c"))])
    pending.deliver([(0, error), (1, None)])
    assert list(pending) == [(2, b"c"), (0, error), (1, None)]
