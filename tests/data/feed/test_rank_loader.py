"""Loaders that take their place from the world."""

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.crops import IndexPipeline
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.free_plans import FreeSource
from rankwise.world import World, adopt


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
        with SampleLoader(source, order=Order(source, batch_size=4), world=RankPlace(rank, 3)) as loader:
            seen += [x for (batch,) in loader for x in batch["x"].tolist()]
    assert sorted(seen) == list(range(10))
    assert (source.closed, source.asked) == (3, 10)


def test_an_unknown_argument_is_said_by_the_class_that_was_called():
    """The message lists the arguments close to it; without any, all there are."""
    source = ArraySource({"x": np.arange(10)})
    order = Order(source, batch_size=4)
    with pytest.raises(TypeError, match=r"^SampleLoader has no argument bacth_transform=: did you mean batch_trans"):
        SampleLoader(source, order=order, bacth_transform=None)
    with pytest.raises(TypeError, match=r"^SampleLoader has no argument rank=: it has across_epochs, .*, world$"):
        SampleLoader(source, order=order, rank=0)
    with pytest.raises(TypeError, match=r"^SampleLoader takes all but the source by name: order=, "):
        SampleLoader(source, order)
    with pytest.raises(TypeError, match=r"^DatasetLoader has no argument batch_size=: the order decides it"):
        DatasetLoader(source, batch_size=4, shuffle=True)
    with pytest.raises(TypeError, match=r"^DatasetLoader has no argument transform=: the dataset changes its samples"):
        DatasetLoader(source, order=order, transform=None)
    with pytest.raises(TypeError, match=r"^DatasetLoader has no argument pin_mem=: did you mean pin_memory=\?$"):
        DatasetLoader(source, order=order, pin_mem=True)
    with pytest.raises(ConfigError, match=r"DatasetLoader needs order=.* got None"):
        DatasetLoader(source)
    with pytest.raises(TypeError, match=r"^IndexPipeline has no argument microbatch=: did you mean micro_batch=\?$"):
        IndexPipeline(None, order=order, microbatch=2)


def test_an_order_of_other_data_is_refused():
    """Where samples do not match, before anything is read."""
    with pytest.raises(ConfigError, match="the order has 7 samples, the data have 10"):
        SampleLoader(Closing({"x": np.arange(10)}), order=Order(7, batch_size=2), world=RankPlace())


def test_a_place_is_no_source():
    """What holds no samples is named, with what would."""
    with pytest.raises(ConfigError, match="such as an ArraySource or a RowSource, got str"):
        SampleLoader("cells.zarr", order=Order(7, batch_size=2), world=RankPlace())


def test_draws_are_not_samples():
    """An order that draws rows counts draws: another source of as many samples is refused."""
    drawn = Order(FreeSource(draw_options="some"), batch_size=2)
    for make in (SampleLoader, DatasetLoader):
        with pytest.raises(ConfigError, match="the order draws its samples"):
            make(Closing({"x": np.arange(10)}), order=drawn, world=RankPlace())


def loaders_of(source, order):
    return [SampleLoader(source, order=order, device=None), DatasetLoader(source, order=order, device=None)]


def test_before_there_is_a_group_the_launchers_numbers_share(monkeypatch):
    """Made before `init_process_group`, or without one: each rank gets its share, all of them each sample once."""
    source = ArraySource({"x": np.arange(10)})
    order, seen = Order(source, batch_size=4), {"SampleLoader": [], "DatasetLoader": []}
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        for loader in loaders_of(source, order):
            seen[type(loader).__name__] += [sample for (batch,) in loader for sample in batch.ids.tolist()]
    assert {name: sorted(ids) for name, ids in seen.items()} == {name: list(range(10)) for name in seen}


def read_in_a_group(world):
    """Make loaders as a process that has not been told of the others yet; iterate when the group is there."""
    source = ArraySource({"x": np.arange(10)})
    order, told = Order(source, batch_size=4), []
    for options in ({}, {"world": World.single()}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adopt, "group_world", lambda: None)
            loaders = [make(source, order=order, device=None, **options) for make in (SampleLoader, DatasetLoader)]
        for loader in [*loaders, loaders[0].with_full_length()]:
            try:
                told.append([sample for (batch,) in loader for sample in batch.ids.tolist()])
            except ConfigError as error:
                told.append(str(error))
    return told


def test_a_loader_made_for_other_ranks_is_refused():
    """Made in a world of one, iterated in a group of two: an error on every rank, unless that world was passed."""
    for rank, told in enumerate(run_ranks(read_in_a_group, 2)):
        for refused in told[:3]:
            assert f"made for rank 0 of 1, but this process is rank {rank} of 2" in refused
        assert [sorted(ids) for ids in told[3:]] == [list(range(10))] * 3
