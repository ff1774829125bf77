"""Reads that are under way."""

from concurrent.futures import Future

import pytest

from rankwise.data.store.remote import PendingReads
from rankwise.errors import DataError


@pytest.mark.parametrize("take", [PendingReads.result, list])
def test_waiting_ends_when_it_is_cancelled(take):
    """Whoever waits is told; reads that have begun end by themselves."""
    begun, waiting = Future(), Future()
    begun.set_running_or_notify_cancel()
    pending = PendingReads(2, [begun, waiting])
    pending.cancel()
    assert not waiting.set_running_or_notify_cancel()  # as its thread does
    begun.set_result([(1, memoryview(b"x"))])
    with pytest.raises(DataError, match="cancelled"):
        take(pending)


@pytest.mark.parametrize("take", [PendingReads.result, lambda pending: next(iter(pending))])
def test_a_crash_reaches_whoever_waits(take):
    """An error that is about no piece is raised as it is, never turned into missing data."""
    read = Future()
    read.set_exception(MemoryError("no room"))
    with pytest.raises(MemoryError, match="no room"):
        take(PendingReads(1, [read]))


def test_after_an_error_no_more_is_read():
    """A Ctrl-C or a crash: nobody takes the pieces that have not begun."""
    crashed, waiting = Future(), Future()
    crashed.set_exception(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        PendingReads(2, [crashed, waiting]).result()
    assert waiting.cancelled()


def test_pieces_come_in_the_order_of_arrival():
    """Not in the order they were asked for, and errors among them."""
    first, second = Future(), Future()
    pending, error = PendingReads(3, [first, second]), DataError("lost")
    pieces = iter(pending)
    second.set_result([(2, memoryview(b"c"))])
    assert next(pieces) == (2, b"c")
    first.set_result([(0, error), (1, None)])
    assert list(pieces) == [(0, error), (1, None)]
    assert pending.result() == [error, None, b"c"]
