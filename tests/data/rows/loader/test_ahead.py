"""Work in the background, a little ahead."""

import threading

import pytest

from rankwise.data.rows.loader.ahead import read_ahead


@pytest.fixture
def new_threads():
    """Tell the threads that read ahead and were not there before; those of other tests end as they like."""
    before = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t.name.startswith("rankwise-rows") and t not in before]


def test_the_next_is_under_way_while_one_is_in_use():
    """Work on item k + 1 begins before item k + 1 is asked for; results come in order."""
    started = [threading.Event() for _ in range(4)]

    def work(item):
        if item < 4:
            started[item].set()
        return item * item

    results = read_ahead(iter(range(4)), work, depth=1)
    assert next(results) == 0
    assert started[1].wait(30)  # without asking for it
    assert list(results) == [1, 4, 9]


def test_items_are_taken_by_who_iterates():
    """A sampler needs no lock; at most depth + 1 items are taken for each that is used."""
    taken = []

    def items():
        for number in range(10):
            taken.append((number, threading.current_thread()))
            yield number

    results = read_ahead(items(), lambda item: item, depth=2)
    next(results)
    assert len(taken) == 3
    results.close()
    assert {thread for _, thread in taken} == {threading.current_thread()}


@pytest.mark.parametrize("where", ["items", "work"])
def test_errors_come_in_their_turn(where, new_threads):
    """What was read before an error is handed out first."""

    def items():
        yield from range(3)
        if where == "items":
            raise KeyError("three")
        yield 3

    def work(item):
        if item == 3:
            raise KeyError("three")
        return item

    results, seen = read_ahead(items(), work, depth=2), []
    with pytest.raises(KeyError, match="three"):
        seen.extend(iter(results.__next__, None))
    results.close()
    assert not new_threads()


def test_leaving_early_ends_the_thread(new_threads):
    """Nothing runs on after close()."""
    results = read_ahead(iter(range(100)), lambda item: item, depth=3)
    next(results)
    assert new_threads()
    results.close()
    assert not new_threads()
