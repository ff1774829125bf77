"""The queue between reader and consumer."""

import threading

import pytest

from rankwise.data.feed.prefetch import Conveyor


def test_items_come_in_order_then_none():
    """A thread's items arrive in order, at most `depth` wait, and the end is None, again and again."""
    conveyor = Conveyor(2)
    most = []

    def produce():
        for number in range(50):
            assert conveyor.put(number)
            most.append(len(conveyor._items))
        conveyor.end()

    thread = threading.Thread(target=produce)
    thread.start()
    got = [conveyor.take() for _ in range(50)]
    thread.join(10)
    assert got == list(range(50))
    assert max(most) <= 2
    assert conveyor.take() is None
    assert conveyor.take() is None


def test_an_error_follows_the_items_before_it():
    """What was read before the error is delivered, then the error is raised."""
    conveyor = Conveyor(3)
    conveyor.put("good")
    conveyor.end(OSError("disk"))
    assert conveyor.take() == "good"
    with pytest.raises(OSError, match="disk"):
        conveyor.take()


def test_closing_wakes_both_sides():
    """A producer that waits for room is told to stop; what was not taken is returned."""
    conveyor = Conveyor(1)
    conveyor.put("a")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(conveyor.put("b")))
    thread.start()
    left = conveyor.close()
    thread.join(10)
    assert (left, answers) == (["a"], [False])
    assert conveyor.take() is None
    assert conveyor.closed
