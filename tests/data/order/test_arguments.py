"""What orders can be made of."""

import pytest

from rankwise import Order
from rankwise.data.order import BatchSampler, layout
from rankwise.errors import ConfigError
from rankwise.testing.stores.free_plans import FreeSource


class Drawable(FreeSource):
    fingerprint = "f"

    def drawn(self, **draw):
        return FreeSource(num_samples=draw.get("num_samples", 10), fingerprint="f+d", draw_options=draw)


@pytest.fixture
def no_openers(monkeypatch):
    monkeypatch.setattr(layout, "_OPENERS", [])


def test_places_want_a_room_that_knows_them(no_openers):
    """Without one a place is refused, and not taken for as many samples as it has letters."""
    with pytest.raises(ConfigError, match=r"got the path 'cells.zarr': `import rankwise.data.rows` opens"):
        Order("cells.zarr", batch_size=2)
    layout.add_opener(lambda samples: Drawable() if samples == "cells.zarr" else None)
    assert Order("cells.zarr", batch_size=2).samples == 10
    assert Order(7, batch_size=2).samples == 7


def test_draws_are_the_sources(no_openers):
    """An order asks its source for draws, and remembers how they were made; equal ones are equal."""
    order = Order(Drawable(), batch_size=2, balance="kind", num_samples=30)
    assert (order.samples, order.fingerprint, order.draw) == (30, "f+d", {"balance": "kind", "num_samples": 30})
    assert order == Order(Drawable(), batch_size=2, balance="kind", num_samples=30)
    assert order.recipe != Order(Drawable(), batch_size=2, num_samples=30, weights=[1]).recipe or order.draw
    assert Order(Drawable(), batch_size=2).draw is None
    with pytest.raises(ConfigError, match="draw numbers, not sample ids"):
        BatchSampler(order)
    with pytest.raises(ConfigError, match="balance=, together= need samples that can be drawn"):
        Order(100, batch_size=2, balance="kind", together=2)


def test_samples_may_have_an_order_of_their_own(no_openers):
    """A source that is in random order already stays as it is, in the lanes that it wishes for."""
    mixed = FreeSource(num_samples=40, order_kind="sequential", layout=lambda _: (4, 1))
    order = Order(mixed, batch_size=8)
    step = order.step(order.start())
    assert (order.kind, step.ids.tolist(), step.lanes.tolist()) == ("sequential", list(range(8)), [0, 1, 2, 3] * 2)
    with pytest.raises(ConfigError, match="define their own order: remove kind='shuffle'"):
        Order(mixed, batch_size=8, kind="shuffle")
