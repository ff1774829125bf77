"""`IndexPipeline`: crops of an index in order, on every rank, at any world size."""

import warnings
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline, ShutdownError, Stage, Take
from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.testing.new_threads import threads_since
from rankwise.testing.shares import RankPlace
from rankwise.train import Balance
from rankwise.world import World


def crops_of(pipeline, volumes, *, steps=None):
    """Ids and places of each step, every crop compared with a slice; marks as many steps done as are taken."""
    taken = []
    for number, batches in enumerate(pipeline):
        if number == steps:
            break
        here = []
        for batch in batches:
            places = pipeline.places(batch)
            for row, place in enumerate(places):
                box = tuple(slice(a, b) for a, b in zip(place.start, place.stop, strict=True))
                for part in ("image", "label"):
                    np.testing.assert_array_equal(batch[part][row].numpy(), volumes.value(place.image, part)[box])
            here += [(i, p.image.name, p.start) for i, p in zip(batch.ids.tolist(), places, strict=True)]
            resume = batch.resume
        pipeline.mark_done(resume)
        taken.append(here)
    return taken


def world(index, order, volumes, size, *, state, steps=None, **options):
    """What all ranks of a world take from a state on, and the state after it."""
    ranks, states = [], []
    for rank in range(size):
        with IndexPipeline(index, order=order, world=RankPlace(rank, size), **options) as pipeline:
            pipeline.load_state_dict(state)
            ranks.append(crops_of(pipeline, volumes, steps=steps))
            states.append(pipeline.state_dict())
    assert states == states[:1] * size
    return [list(chain(*parts)) for parts in zip(*ranks, strict=True)], states[0]


@settings(max_examples=3, deadline=None)
@given(st.data())
def test_exactly_once_at_any_world_and_restart(volumes, data):
    """Every tile comes once per epoch, byte for byte, also when the ranks stop and go on as another world."""
    batch_size, stop_at = data.draw(st.integers(5, 60)), data.draw(st.integers(0, 4))
    size, later = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    options = {"micro_batch": data.draw(st.none() | st.integers(1, 9)), "threads": data.draw(st.integers(1, 2))}
    stride = data.draw(st.sampled_from([(8, 8, 8), (5, 7, 8), (9, 12, 10)]))
    index = CropIndex(volumes.images, shape=(8, 8, 8), stride=stride)
    order = Order(index, batch_size=batch_size)
    first, state = world(index, order, volumes, size, state=order.start().to_json(), steps=stop_at, **options)
    second, _ = world(index, order, volumes, later, state=state, **options)
    if state["epoch"] == 1:
        second = []
    ids = [crop[0] for crop in chain(*first, *second)]
    assert sorted(ids) == list(range(len(index)))
    assert len({crop[1:] for crop in chain(*first, *second)}) == len(index)


@pytest.mark.parametrize("options", [{}, {"neighbourhood": 4}, {"foreground": ("label", 0.5), "align": "chunk"}])
def test_random_crops_are_the_same_at_every_world_size(volumes, options):
    """A step holds the same random crops for 1, 2 and 5 ranks; another epoch draws others."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=60, **options)
    order = Order(index, batch_size=16)
    worlds = [world(index, order, volumes, size, state=order.start().to_json())[0] for size in (1, 2, 5)]
    steps = [[sorted(step) for step in found] for found in worlds]
    assert steps[0] == steps[1] == steps[2]
    later = world(index, order, volumes, 2, state=order.start(1).to_json())[0]
    assert {crop[1:] for step in later for crop in step} != {crop[1:] for step in worlds[0] for crop in step}


def test_fields_come_with_their_own_dtype_and_normalisation(volumes):
    """Each field has the dtype and scaling that its `Take` asks for; labels of images come along."""
    from rankwise.data.crops import Scaling

    index = CropIndex(
        volumes.images,
        shape=(4, 8, 8),
        fields={"image": Take(normalise=Scaling.unit(0, 1000)), "seg": Take("label", dtype="int64")},
        labels={"donor": lambda image: int(image.name[5]), "pair": lambda image: [1.5, 2.5]},
    )
    assert {name: (spec.shape, str(spec.dtype)) for name, spec in index.fields.items()} == {
        "image": ((4, 8, 8), "float32"),
        "seg": ((4, 8, 8), "int64"),
        "donor": ((), "int64"),
        "pair": ((2,), "float64"),
    }
    with IndexPipeline(index, order=Order(index, batch_size=32), world=RankPlace()) as pipeline:
        steps = iter(pipeline)
        (batch,) = next(steps)
        for row, place in enumerate(pipeline.places(batch)):
            box = tuple(slice(a, b) for a, b in zip(place.start, place.stop, strict=True))
            wanted = volumes.value(place.image)[box].astype("f4") * np.float32(1 / 1000)
            np.testing.assert_array_equal(batch["image"][row].numpy(), wanted)
            np.testing.assert_array_equal(batch["seg"][row].numpy(), volumes.value(place.image, "label")[box])
            assert batch["donor"][row] == int(place.image.name[5])
            assert batch["pair"][row].tolist() == [1.5, 2.5]
        steps.close()
    with IndexPipeline(
        index, order=Order(index, batch_size=32), world=RankPlace(), fields=["image", "donor"], device=None
    ) as pipeline:
        for (batch,) in pipeline:
            assert list(batch) == ["image", "donor"]


def test_padded_tiles_have_a_mask(volumes):
    """Tiles that stick out are padded, their mask says what is real, and together they hold each voxel once."""
    index = CropIndex(volumes.images, shape=(8, 16, 16), edges="pad", fields={"image": Take(pad="reflect", mask=True)})
    seen = {name: np.zeros(parts["image"].shape, int) for name, parts in volumes.values.items()}
    with IndexPipeline(index, order=Order(index, batch_size=8), world=RankPlace(), device=None) as pipeline:
        for (batch,) in pipeline:
            for row, place in enumerate(pipeline.places(batch)):
                whole = volumes.value(place.image)
                inside = tuple(
                    slice(a, min(b, n)) for a, b, n in zip(place.start, place.stop, whole.shape, strict=True)
                )
                kept = batch["image_mask"][row]
                np.testing.assert_array_equal(batch["image"][row][kept], whole[inside].ravel())
                seen[place.image.name][inside] += 1
    assert all((count == 1).all() for count in seen.values())


def test_transforms_have_the_key_of_the_crop(volumes):
    """Transforms see a crop's key, the same at any world size."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=30)
    order = Order(index, batch_size=10)

    def keyed(size):
        found = {}
        for rank in range(size):
            loader = IndexPipeline(
                index,
                order=order,
                world=RankPlace(rank, size),
                device=None,
                transform=lambda fields, key: {"key": key, "sum": fields["image"].sum(dtype="i8")},
                batch_transform=lambda fields, keys: {**fields, "same": keys == fields["key"]},
            )
            with loader:
                for batch in chain.from_iterable(loader):
                    assert batch["same"].all()
                    found |= dict(zip(batch["key"].tolist(), batch["sum"].tolist(), strict=True))
        return found

    assert len(keyed(1)) == 30
    assert keyed(1) == keyed(3)


def _sums_of_a_rank(world, images):
    index = CropIndex(images, shape=(8, 8, 8), num_random=50, foreground=("label", 0.3))
    with IndexPipeline(index, order=Order(index, batch_size=20), micro_batch=3, world=world) as pipeline:
        return [[(batch.ids.tolist(), int(batch["image"].long().sum())) for batch in step] for step in pipeline]


def test_real_ranks_share_the_steps(volumes):
    """Two real ranks read each step's crops together, the same ones that one rank reads."""
    two = run_ranks(_sums_of_a_rank, 2, volumes.images)
    (one,) = run_ranks(_sums_of_a_rank, 1, volumes.images)
    for alone, *together in zip(one, *two, strict=True):
        assert sum(total for _, total in alone) == sum(total for part in together for _, total in part)
        assert sorted(chain(*(ids for ids, _ in alone))) == sorted(chain(*(i for part in together for i, _ in part)))


def test_it_is_what_the_message_says(volumes):
    """A wrong first argument, and an order over something else, are refused with what was wanted."""
    index = CropIndex(volumes.images, shape=(8, 8, 8))
    other = CropIndex(volumes.images, shape=(4, 8, 8))
    with pytest.raises(ConfigError, match="needs a CropIndex, got "):
        IndexPipeline([1], order=Order(index, batch_size=8), world=RankPlace())
    with pytest.raises(ConfigError, match="create it from"):
        IndexPipeline(index, order=Order(other, batch_size=8), world=RankPlace())
    with pytest.raises(ConfigError, match=r"the index has the fields image, label; asked for \['depth'\]"):
        IndexPipeline(index, order=Order(index, batch_size=8), world=RankPlace(), fields=["depth"])


def test_shares_are_equal(volumes):
    """The memory of crops is settled for equal shares: another cut is refused before a step, by both ways to ask."""
    index = CropIndex(volumes.images, shape=(8, 16, 16))
    with IndexPipeline(index, order=Order(index, batch_size=8), world=RankPlace(), device=None) as pipeline:
        with pytest.raises(ConfigError, match="cuts equal shares only: the memory of a crop pipeline"):
            pipeline.set_speeds([1])
        for speeds in ("speed", [1]):
            balance = Balance(nn.Linear(1, 1), World.single(), speeds=speeds)
            with pytest.raises(
                ConfigError, match="this IndexPipeline makes equal shares only: the memory of a crop pipeline"
            ):
                next(balance.steps(pipeline))


def test_a_cache_too_small_for_the_order_is_said(volumes):
    """Regions that do not fit the cache are named with the size that is needed, on the main rank."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), stride=(4, 4, 4))
    order = Order(index, batch_size=32)
    with pytest.warns(UserWarning, match=r"regions at a time on each rank .* Set cache=\d+"):
        IndexPipeline(index, order=order, world=RankPlace(), cache=1000)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        IndexPipeline(index, order=order, world=RankPlace(1, 2), cache=1000)
        IndexPipeline(index, order=order, world=RankPlace(), cache=0)
    assert [str(warning.message) for warning in said] == []


def test_over_the_end_of_an_epoch(volumes):
    """Random crops of epoch after epoch, read ahead over its end: each at its own place, and counted as without."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=40)
    found = []
    for across_epochs in (None, False):
        with IndexPipeline(
            index, order=Order(index, batch_size=16), world=RankPlace(), cache=0, across_epochs=across_epochs
        ) as pipeline:
            shown = [crops_of(pipeline, volumes) for _ in range(3)]
            found.append((shown, pipeline.state_dict(), pipeline.stats.chunks_decoded))
        assert not threads_since("rankwise-reader")
    assert found[0] == found[1]
    assert found[0][1]["epoch"] == 3


def test_crops_that_are_read_before_they_are_asked_for(volumes):
    """The steps that lie ready are decoded early, once; a pipeline that is closed refuses, as iterating does."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=40)
    found = []
    for early in (True, False):
        pipeline = IndexPipeline(
            index, order=Order(index, batch_size=16), world=RankPlace(), cache=0, across_epochs=False
        )
        if early:
            assert pipeline.start_prefetch()
            for reader in threads_since("rankwise-reader"):
                reader.join(20)
            assert pipeline.stats.steps == 0
        shown = crops_of(pipeline, volumes)
        found.append((shown, pipeline.state_dict(), pipeline.stats.chunks_decoded))
        pipeline.close()
        with pytest.raises(ShutdownError):
            pipeline.start_prefetch()
    assert found[0] == found[1]
    assert not threads_since("rankwise-reader")


def test_a_transform_meets_the_shapes_of_each_stage(volumes):
    """A curriculum may change the shape of crops: what a transform returns is of one shape within an epoch only."""
    stages = {0: Stage(), 1: Stage(shape=(4, 4, 4))}
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=8, curriculum=stages)
    options = {"world": RankPlace(), "device": None, "transform": lambda fields, _key: fields}
    with IndexPipeline(index, order=Order(index, batch_size=4), **options) as pipeline:
        shown = []
        for _ in range(2):
            for (batch,) in pipeline:
                shown.append(batch["image"].shape[1:])
                pipeline.mark_done(batch.resume)
    assert shown == [(8, 8, 8)] * 2 + [(4, 4, 4)] * 2
