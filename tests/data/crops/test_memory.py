"""Memory that is lent: a slot comes back when nothing looks at it any more, never before."""

import threading

import numpy as np
import pytest
import torch

from rankwise.data.contract import FieldSpec
from rankwise.data.crops import BudgetExceeded
from rankwise.data.crops.memory import LentBuffer, Ring
from rankwise.errors import ConfigError

SPECS = {"x": FieldSpec(shape=(4,), dtype=np.dtype("f4")), "m": FieldSpec(shape=(3,), dtype=np.dtype("?"))}


def lent(ring, num_samples=2):
    buffer = ring.borrow()
    buffer.reserve(SPECS, num_samples, {})
    return buffer


@pytest.mark.parametrize(
    "share",
    [
        lambda a: a[1:, 2:],
        torch.from_numpy,
        lambda a: torch.from_numpy(a)[0],
        np.from_dlpack,
        lambda a: torch.from_dlpack(torch.from_numpy(a)),
        lambda a: a.__dlpack__(),
        memoryview,
    ],
)
def test_whatever_shares_memory_keeps_it(share):
    """Views, tensors, DLPack capsules and memory views all keep a slot out of use; when they die it is back."""
    ring = Ring(1)
    buffer = lent(ring)
    shared = share(buffer.arrays("x")[0])
    del buffer
    assert ring.num_free == 0
    del shared
    assert ring.num_free == 1


def test_memory_is_used_again_and_aligned():
    """The next batch lies where the last one lay: nothing grows; JAX's 64 bytes are kept."""
    ring = Ring(1)
    places = set()
    for _ in range(5):
        buffer = lent(ring)
        places.add(buffer.arrays("x")[0].ctypes.data)
        assert buffer.arrays("m")[0].shape == (2, 3)
        del buffer
    assert len(places) == 1
    assert places.pop() % 64 == 0


def test_borrowing_waits_for_a_slot_and_for_its_consumer():
    """Who borrows waits until a slot is back, and a slot is not written before its event has happened."""
    ring = Ring(1)
    first = lent(ring)
    asked = []

    class Event:
        def synchronize(self):
            asked.append("synchronize")

    first.busy = Event()
    got = []
    thread = threading.Thread(target=lambda: got.append(lent(ring)))
    thread.start()
    assert not got
    del first
    thread.join(20)
    assert len(got) == 1
    assert asked == ["synchronize"]
    assert got[0].busy is None


def test_closing_wakes_all_and_takes_nothing_away():
    """Who waits at the end goes empty-handed; arrays that are out stay as they are."""
    ring = Ring(1)
    kept = lent(ring).arrays("x")[0]
    kept[:] = 7
    got = []
    threads = [threading.Thread(target=lambda: got.append(ring.borrow())) for _ in range(3)]
    for thread in threads:
        thread.start()
    ring.close()
    for thread in threads:
        thread.join(20)
    assert got == [None] * 3
    assert (kept == 7).all()


def test_rows_can_be_dropped():
    """The rows that stay move to the front, in order, in every field."""
    buffer = LentBuffer()
    buffer.reserve(SPECS, 5, {})
    buffer.arrays("x")[0][:] = np.arange(5)[:, None]
    buffer.arrays("m")[0][:] = (np.arange(5) % 2 == 0)[:, None]
    buffer.keep(np.array([False, True, True, False, True]))
    assert buffer.arrays("x")[0][:, 0].tolist() == [1, 2, 4]
    assert buffer.arrays("m")[0][:, 0].tolist() == [False, True, True]
    buffer.keep(np.zeros(3, bool))
    assert buffer.arrays("x")[0].shape == (0, 4)


def test_limits_hold():
    """A batch that turns out larger than its slot may be is refused with both sizes; crops are never ragged."""
    ring = Ring(1, limit_bytes=40)
    lent(ring, 1)
    with pytest.raises(BudgetExceeded, match=r"at least \d+ bytes, a batch buffer may take 40"):
        lent(ring, 3)
    with pytest.raises(ConfigError, match="dense"):
        LentBuffer().reserve({"r": FieldSpec(shape=(), dtype=np.dtype("f4"), ragged=True)}, 1, {"r": 1})
