"""The queue between reader and consumer."""

import threading

import pytest

from rankwise.data.feed.prefetch import PrefetchQueue


def test_items_come_in_order_then_none():
    """A thread's items arrive in order, at most `depth` wait, and the end is None, again and again."""
    conveyor = PrefetchQueue(2)
    most = []

    def produce():
        for number in range(50):
            assert conveyor.put(number)
            most.append(len(conveyor._items))
        conveyor.end()

    thread = threading.Thread(target=produce)
    thread.start()
    got = [conveyor.take() for _ in range(50)]
    thread.join(60)
    assert got == list(range(50))
    assert max(most) <= 2
    assert conveyor.take() is None
    assert conveyor.take() is None


def test_an_error_follows_the_items_before_it():
    """What was read before the error is delivered, then the error is raised."""
    conveyor = PrefetchQueue(3)
    conveyor.put("good")
    conveyor.end(OSError("disk"))
    assert conveyor.take() == "good"
    with pytest.raises(OSError, match="disk"):
        conveyor.take()


def test_closing_wakes_both_sides():
    """A producer that waits for room is told to stop; what was not taken is returned."""
    conveyor = PrefetchQueue(1)
    conveyor.put("a")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(conveyor.put("b")))
    thread.start()
    left = conveyor.close()
    thread.join(60)
    assert (left, answers) == (["a"], [False])
    assert conveyor.take() is None
    assert conveyor.closed


def test_who_takes_says_how_long_he_waits():
    """No longer than a timeout, and not where there is nothing and `until` holds; items come first, the end as well."""
    conveyor, enough = PrefetchQueue(2), []
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        conveyor.take(timeout_s=0.01)
    assert not conveyor.is_awaited()
    assert conveyor.take(until=lambda: True) is None
    conveyor.put("a")
    assert conveyor.take(until=lambda: True) == "a"
    thread, got = taking(conveyor, until=lambda: bool(enough))
    enough.append(1)
    conveyor.wake()
    thread.join(60)
    assert got == [None]
    conveyor.end()
    assert conveyor.take(timeout_s=0) is None


def test_several_may_wait():
    """Each of them is seen: who is served leaves the others waiting, and the reader is told again."""
    told = threading.Semaphore(0)
    conveyor = PrefetchQueue(2, on_wait=told.release)
    threads = [taking(conveyor) for _ in range(2)]
    for number in range(2):
        told.acquire()
        while not conveyor.is_awaited():
            told.acquire()
        conveyor.put(number)
    for thread, _ in threads:
        thread.join(60)
    assert sorted(got for _, [got] in threads) == [0, 1]
    assert not conveyor.is_awaited()


def taking(conveyor, **how):
    got = []
    thread = threading.Thread(target=lambda: got.append(conveyor.take(**how)))
    thread.start()
    return thread, got
