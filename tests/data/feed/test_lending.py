"""Buffers, and parts of them, that several batches have at once."""

import numpy as np
import pytest

from rankwise.data.contract import FieldSpec
from rankwise.data.feed.buffer import HostBuffer
from rankwise.data.feed.lending import LentBuffer, SharedBuffer
from rankwise.errors import ConfigError

SPECS = {
    "x": FieldSpec(shape=(2,), dtype=np.dtype("f4")),
    "rows": FieldSpec(shape=(9,), dtype=np.dtype("f8"), ragged=True),
}
LENGTHS = [2, 0, 3, 1, 0, 2]


def filled():
    """A buffer of six samples: x is their number twice, the row of sample s has s in its first columns."""
    whole = HostBuffer()
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


@pytest.fixture
def came():
    return []


def test_parts_lie_in_the_buffer(came):
    """Values are views of it; row pointers begin at 0."""
    whole = filled()
    part = SharedBuffer(whole, came.append).part(SPECS, 2, 5)
    assert values(part) == [[[2, 2], [3, 3], [4, 4]], [2, 2, 2, 3], [0, 1, 2, 0], [0, 3, 4, 4]]
    assert np.shares_memory(part.arrays("x")[0], whole.arrays("x")[0])
    assert all(np.shares_memory(part.arrays("rows")[k], whole.arrays("rows")[k]) for k in (0, 1))
    assert part.num_bytes == 24 + 32 + 16 + 16


def test_rows_of_a_part_move_within_it(came):
    """What is dropped from one leaves its neighbours as they are."""
    shared = SharedBuffer(filled(), came.append)
    one, other = shared.part(SPECS, 0, 3), shared.part(SPECS, 3, 6)
    one.keep(np.array([False, True, True]))
    assert values(one) == [[[1, 1], [2, 2]], [2, 2, 2], [0, 1, 2], [0, 0, 3]]
    assert values(other) == [[[3, 3], [4, 4], [5, 5]], [3, 5, 5], [0, 0, 1], [0, 1, 1, 3]]


def test_a_copy_of_a_part():
    """All fields, in memory of their own."""
    whole, into = filled(), HostBuffer()
    part = SharedBuffer(whole, print).part(SPECS, 2, 5)
    part.copy_to(into, SPECS, 3)
    copied = values(into)
    assert copied == values(part)
    whole.arrays("x")[0][:] = 7
    assert values(into) == copied


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_the_buffer_goes_back_with_the_last_user(came, order):
    """Who lends is one of them."""
    whole = filled()
    shared = SharedBuffer(whole, came.append)
    users = [shared.close, shared.part(SPECS, 0, 3).give_back, shared.part(SPECS, 3, 6).give_back]
    for number in order:
        assert came == []
        users[number]()
    assert came == [whole]


def test_it_is_filled_again_when_all_consumers_are_done(came):
    """Each part may have something to wait for; the buffer waits for all of these."""
    whole, waited = filled(), []
    shared = SharedBuffer(whole, came.append)
    parts = [shared.part(SPECS, first, first + 2) for first in (0, 2, 4)]
    events = [Event(waited), None, Event(waited)]
    for part, event in zip(parts, events, strict=True):
        part.busy = event
        part.give_back()
    shared.close()
    assert waited == []
    whole.reserve(SPECS, 1, {"rows": 0})
    assert waited == [events[0], events[2]]


def test_a_part_may_be_too_large(came):
    """The limit is that of a batch, not that of all that are read together."""
    with pytest.raises(ConfigError, match="at least 172 bytes, a batch buffer may take 100"):
        SharedBuffer(filled(), came.append, limit_bytes=100).part(SPECS, 0, 6)
    assert SharedBuffer(filled(), came.append, limit_bytes=100).part(SPECS, 0, 3).num_bytes <= 100


def test_a_whole_buffer(came):
    """It waits for what its batch waits for, and goes back once."""
    whole, waited = filled(), []
    lent = LentBuffer(whole, came.append)
    assert values(lent) == values(whole)
    lent.keep(np.array([True] + 5 * [False]))
    assert values(whole) == [[[0, 0]], [0, 0], [0, 1], [0, 2]]
    lent.busy = Event(waited)
    assert lent.busy is whole.busy
    lent.give_back()
    assert came == [whole]
