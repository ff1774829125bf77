"""How many steps lie ready."""

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.contract import FieldSpec
from rankwise.data.feed.options import window_depth
from rankwise.testing.stores.free_plans import FreeSource


def source(*, row_bytes=1000, ragged=True, fields=(), **more):
    specs = {"X": FieldSpec(shape=(row_bytes // 4,), dtype=np.dtype("f4"), ragged=ragged), **dict(fields)}
    return FreeSource(fields=specs, chunk_bytes=row_bytes, **more)


@pytest.mark.parametrize(
    ("batch_size", "row_bytes", "world_size", "steps"),
    [
        (100, 1000, 1, 16),  # 8 lanes of 10 chunks of 20 samples: 1,600 samples
        (300, 1000, 1, 6),
        (5000, 1000, 1, 2),
        (100, 300_000, 1, 4),  # 128 MiB hold 4 steps of 30 MB
        (100, 300_000, 2, 8),  # and twice as many halves
        (100, 9_000_000, 1, 2),
    ],
)
@pytest.mark.parametrize("ragged", [True, False])
def test_a_window_lies_ready(batch_size, row_bytes, world_size, steps, ragged):
    """As many steps as the window of all lanes lasts, as far as 128 MiB hold this rank's share of them."""
    order = Order(100_000, batch_size=batch_size, chunk_samples=20, lanes=8, window=10)
    held = source(row_bytes=row_bytes, ragged=ragged)
    assert window_depth(held, order, world_size=world_size) == steps


@pytest.mark.parametrize(
    ("row_bytes", "steps"),
    [
        (240_000, 16),  # 384 MB
        (250_000, 16),
        (260_000, 4),  # 416 MB; 128 MiB hold 5 of 26 MB, and 4 parts of 4 steps are alike
        (330_000, 4),
        (440_000, 3),  # 6 parts, the last of which is one step long
    ],
)
def test_a_window_that_is_read_as_one(row_bytes, steps):
    """It may take 384 MiB; a larger one comes in parts that are as long as each other."""
    order = Order(100_000, batch_size=100, chunk_samples=20, lanes=8, window=10)
    assert window_depth(source(row_bytes=row_bytes, group_steps=True), order, world_size=1) == steps
    halves = Order(100_000, batch_size=200, chunk_samples=20, lanes=8, window=10)
    assert window_depth(source(row_bytes=row_bytes, group_steps=True), halves, world_size=2) == 8


def test_orders_without_windows():
    """Two steps where samples come as they are stored, or one by one."""
    assert window_depth(source(), Order(1000, batch_size=10, kind="sequential"), world_size=1) == 2
    assert window_depth(source(), Order(1000, batch_size=100), world_size=1) == 2  # chunks of one sample


def test_windows_of_an_own_order():
    """Samples in an order of their own say how long its windows last; others in order have none."""
    order = Order(900, batch_size=10, kind="sequential")
    source = FreeSource(window_samples=55)
    assert window_depth(source, order, world_size=1) == 6
    assert window_depth(FreeSource(), order, world_size=1) == 2
