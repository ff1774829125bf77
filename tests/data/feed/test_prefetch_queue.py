"""The queue between reader and consumer."""

import threading

import pytest

from rankwise.data.feed.prefetch import PrefetchQueue


def test_items_come_in_order_then_none():
    """A thread's items arrive in order, at most `depth` wait, and the end is None, again and again."""
    queue = PrefetchQueue(2)
    most = []

    def produce():
        for number in range(50):
            assert queue.put(number)
            most.append(len(queue._items))
        queue.end()

    thread = threading.Thread(target=produce)
    thread.start()
    got = [queue.take() for _ in range(50)]
    thread.join(60)
    assert got == list(range(50))
    assert max(most) <= 2
    assert queue.take() is None
    assert queue.take() is None


def test_an_error_follows_the_items_before_it():
    """What was read before the error is delivered, then the error is raised."""
    queue = PrefetchQueue(3)
    queue.put("good")
    queue.end(OSError("disk"))
    assert queue.take() == "good"
    with pytest.raises(OSError, match="disk"):
        queue.take()


def test_closing_wakes_both_sides():
    """A producer that waits for room is told to stop; what was not taken is returned."""
    queue = PrefetchQueue(1)
    queue.put("a")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(queue.put("b")))
    thread.start()
    left = queue.close()
    thread.join(60)
    assert (left, answers) == (["a"], [False])
    assert queue.take() is None
    assert queue.closed


def test_who_takes_says_how_long_he_waits():
    """No longer than a timeout, and not where there is nothing and `until` holds; items come first, the end as well."""
    queue, enough = PrefetchQueue(2), []
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        queue.take(timeout_s=0.01)
    assert not queue.is_awaited()
    assert queue.take(until=lambda: True) is None
    queue.put("a")
    assert queue.take(until=lambda: True) == "a"
    thread, got = taking(queue, until=lambda: bool(enough))
    enough.append(1)
    queue.wake()
    thread.join(60)
    assert got == [None]
    queue.end()
    assert queue.take(timeout_s=0) is None


def test_several_may_wait():
    """Each of them is seen: who is served leaves the others waiting, and the reader is told again."""
    told = threading.Semaphore(0)
    queue = PrefetchQueue(2, on_wait=told.release)
    threads = [taking(queue) for _ in range(2)]
    for number in range(2):
        told.acquire()
        while not queue.is_awaited():
            told.acquire()
        queue.put(number)
    for thread, _ in threads:
        thread.join(60)
    assert sorted(got for _, [got] in threads) == [0, 1]
    assert not queue.is_awaited()


def taking(queue, **how):
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.take(**how)))
    thread.start()
    return thread, got
