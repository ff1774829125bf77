"""Load requests in the background, a little ahead."""

import threading

import numpy as np
import pandas as pd
import pytest

from rankwise.data.rows.loader.requests import Requests, RowBlock, RowOrder
from rankwise.testing.new_threads import threads_since


class Rows:
    """Ten times the numbers of rows; notes what is read, and waits for a gate at one row."""

    def __init__(self, failing=()):
        self.failing, self.read_rows, self.gate = failing, [], threading.Event()
        self.stop_at = None
        self.began = [threading.Event() for _ in range(30)]

    def read(self, rows, lease):
        self.began[rows[0]].set()
        assert rows[0] != self.stop_at or self.gate.wait(20)
        if rows[0] in self.failing:
            raise KeyError(f"row {rows[0]}")
        self.read_rows.append(int(rows[0]))
        return RowBlock(arrays=(rows * 10,), num_cols=None, errors={}, lease=lease)


def request(*rows):
    return RowOrder(rows=np.array(rows), edges=(0, len(rows)))


def passed(reader, numbers, *, following=None, obs=None):
    """One pass over requests of one row."""
    yield from held(reader, (request(number) for number in numbers), lambda: obs, lambda: following)


def held(reader, orders, obs=lambda: None, following=lambda: None):
    """One pass: elements, and what is said about them; each block is held until the next one is wanted."""
    for _, block, about in reader.read(iter(orders), obs, following):
        yield block.part(0, None).tolist(), about
        block.lease.leave()
        del block


def none_left():
    for thread in threads_since("rankwise-reader"):
        thread.join(20)
    return not threads_since("rankwise-reader")


def test_the_next_is_under_way_while_one_is_in_use():
    """Work on request k + 1 begins before it is asked for; results come in order, with what is said about the rows."""
    rows = Rows()
    reading = passed(Requests(rows), range(4), obs=pd.DataFrame({"n": [5, 6, 7, 8]}))
    assert next(reading)[0] == [0]
    assert rows.began[1].wait(20)  # without asking for it
    assert [(block, obs["n"].tolist()) for block, obs in reading] == [([10], [6]), ([20], [7]), ([30], [8])]
    assert none_left()


def test_requests_are_drawn_by_who_iterates():
    """What draws them needs no lock; one is read early, and those behind it are drawn, to know which is the last."""
    drawn, rows = [], Rows()

    def orders():
        for number in range(10):
            drawn.append((number, threading.current_thread()))
            yield request(number)

    reader = Requests(rows)
    reading = held(reader, orders())
    for number in range(3):
        assert next(reading)[0] == [10 * number]
        assert rows.began[number + 1].wait(20)
        assert not rows.began[number + 2].is_set()
        assert len(drawn) <= number + 4
    reader.leave()
    assert {thread for _, thread in drawn} == {threading.current_thread()}


@pytest.mark.parametrize("where", ["drawing", "reading"])
def test_errors_come_in_their_turn(where):
    """What was read before an error is handed out first."""

    def orders():
        yield from map(request, range(3))
        if where == "drawing":
            raise KeyError("row 3")
        yield request(3)

    reader, seen = Requests(Rows(failing=(3,))), []
    with pytest.raises(KeyError, match="row 3"):
        seen.extend(held(reader, orders()))
    assert [block for block, _ in seen] == [[0], [10], [20]]
    reader.leave()
    assert none_left()


def test_leaving_waits_for_what_is_read():
    """Nothing runs on behind it, and what was drawn but not begun is not read."""
    rows = Rows()
    reader = Requests(rows)
    rows.stop_at = 1
    assert next(held(reader, map(request, range(9))))[0] == [0]
    assert rows.began[1].wait(20)
    threading.Timer(0.05, rows.gate.set).start()
    reader.leave()
    assert rows.read_rows == [0, 1]
    assert none_left()
    assert [block for block, _ in passed(reader, [7, 8])] == [[70], [80]]


def test_the_first_request_of_the_next_pass_is_read_with_the_last_ones():
    """It is read while the last one is in use, and the pass that begins so gets it; only the first."""
    rows = Rows()
    reader = Requests(rows)
    reading = passed(reader, [0, 1, 2], following=request(5))
    for _ in range(3):
        next(reading)
    assert list(reading) == []
    assert none_left()
    assert rows.read_rows == [0, 1, 2, 5]
    assert [block for block, _ in passed(reader, [5, 6])] == [[50], [60]]
    assert rows.read_rows == [0, 1, 2, 5, 6]


@pytest.mark.parametrize(("last", "is_early"), [(4, True), (5, False)])
def test_a_short_last_request_leaves_the_next_pass_time(last, is_early):
    """Behind one of half its rows the next pass's first is read at once; behind a longer one when that is in use."""
    rows = Rows()
    reader = Requests(rows)
    orders = [request(*range(9)), request(*range(9, 9 + last))]
    reading = held(reader, orders, following=lambda: request(*range(15, 24)))
    next(reading)
    assert rows.began[9].wait(20)
    if is_early:
        assert rows.began[15].wait(20)
    assert rows.began[15].is_set() == is_early
    next(reading)
    assert rows.began[15].wait(20)
    assert list(reading) == []
    assert none_left()


def test_what_was_not_foreseen_is_read_anew():
    """A pass that begins otherwise gets what it asked for; what was read for another is forgotten."""
    rows = Rows()
    reader = Requests(rows)
    for numbers in ([0, 1], [2, 3], [], [4]):
        assert [block for block, _ in passed(reader, numbers, following=request(9))] == [[10 * n] for n in numbers]
    assert none_left()
    assert [n for n in rows.read_rows if n != 9] == [0, 1, 2, 3, 4]


def test_what_was_foreseen_and_fails():
    """It fails in the pass that asks for it, and in no other."""
    reader = Requests(Rows(failing=(5,)))
    assert len(list(passed(reader, [0], following=request(5)))) == 1
    assert len(list(passed(reader, [1], following=request(5)))) == 1
    with pytest.raises(KeyError, match="row 5"):
        list(passed(reader, [5]))


def test_a_first_request_that_is_read_before_its_pass():
    """It is read once, however often it is asked for, and the pass that begins so gets it; then its thread ends."""
    rows = Rows()
    reader = Requests(rows)
    for _ in range(2):
        reader.start(request(3))
        assert none_left()
        assert rows.read_rows == [3]
    assert [block for block, _ in passed(reader, [3, 4])] == [[30], [40]]
    assert rows.read_rows == [3, 4]
    assert none_left()


def test_another_first_request_is_read_behind_it():
    """What was read for nothing is forgotten; the pass gets the last that was named."""
    rows = Rows()
    reader = Requests(rows)
    for number in (3, 4, 5):
        reader.start(request(number))
    assert [block for block, _ in passed(reader, [5, 6])] == [[50], [60]]
    assert rows.read_rows[-2:] == [5, 6]
    assert none_left()


def test_a_first_request_that_fails():
    """The pass that asks for it fails, and no other."""
    reader = Requests(Rows(failing=(5,)))
    reader.start(request(5))
    assert [block for block, _ in passed(reader, [6])] == [[60]]
    reader.start(request(5))
    with pytest.raises(KeyError, match="row 5"):
        next(passed(reader, [5]))
    reader.leave()
    assert none_left()


def test_tables_are_made_while_the_first_request_is_read():
    """What takes its time with many datasets, joining their tables, waits for no rows, and no rows for it."""
    rows = Rows()

    def joined():
        assert rows.began[1].wait(20)
        return pd.DataFrame({"n": np.arange(10)})

    reader = Requests(rows)
    assert [about["n"].tolist() for _, about in held(reader, [request(1)], joined)] == [[1]]
