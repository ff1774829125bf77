"""Loaders that take their place from the world."""

from types import SimpleNamespace

import numpy as np
import pytest

from rankwise.data.feed import RankLoader
from rankwise.data.order import Order
from rankwise.data.samples import ArraySource, DatasetLoader
from rankwise.errors import ConfigError
from rankwise.testing.sharing import RankPlace


class Closing(ArraySource):
    """Counts how often it is closed; is asked what orders count."""

    closed, asked = 0, 0

    def close(self):
        self.closed += 1

    def bound_to(self, order):
        self.asked = order.samples
        return self


def test_ranks_share_and_the_context_closes():
    """Rank and world size are the world's; the context closes the source; the source is asked what is counted."""
    source = Closing({"x": np.arange(10)})
    seen = []
    for rank in range(3):
        with RankLoader(source, order=Order(source, batch_size=4), world=RankPlace(rank, 3)) as loader:
            seen += [x for (batch,) in loader for x in batch["x"].tolist()]
    assert sorted(seen) == list(range(10))
    assert (source.closed, source.asked) == (3, 10)


def test_an_order_of_other_data_is_refused():
    """Where samples do not match, before anything is read."""
    with pytest.raises(ConfigError, match="the order is over 7 samples, the data have 10"):
        RankLoader(Closing({"x": np.arange(10)}), order=Order(7, batch_size=2), world=RankPlace())


def test_a_place_is_no_source():
    """What holds no samples is named, with what would."""
    with pytest.raises(ConfigError, match="such as an ArraySource or a RowSource, got str"):
        RankLoader("cells.zarr", order=Order(7, batch_size=2), world=RankPlace())


def test_draws_are_not_samples():
    """An order that draws rows counts draws: another source of as many samples is refused."""
    drawn = Order(SimpleNamespace(num_samples=10, chunk_samples=1, fields={}, draw_options="some"), batch_size=2)
    for make in (RankLoader, DatasetLoader):
        with pytest.raises(ConfigError, match="the order draws its samples"):
            make(Closing({"x": np.arange(10)}), order=drawn, world=RankPlace())
