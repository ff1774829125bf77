"""A closed `IndexPipeline`: reading ends at once, what was handed out stays, and nobody hangs."""

import threading
from itertools import zip_longest

import numpy as np
import pytest

import rankwise.data.crops as damacy
from rankwise import Order
from rankwise.testing.new_threads import threads_since


def pipeline(volumes, **options):
    index = damacy.CropIndex(volumes.images, shape=(8, 8, 8))
    return damacy.IndexPipeline(index, order=Order(index, batch_size=8), device=None, **options)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_closed_pipeline_gives_no_more_steps(volumes, depth):
    """Iterating a closed pipeline is an error, not an empty epoch; what it knows can still be asked for."""
    with pipeline(volumes, depth=depth) as p:
        (batch,) = next(iter(p))
        p.mark_done(batch.resume)
    p.close()
    with pytest.raises(damacy.ShutdownError, match="load this one's state"):
        next(iter(p))
    assert p.state_dict()["position"] == 8
    assert len(p) == p.num_epoch_steps - 1
    assert not threads_since()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_iteration_under_way_ends_with_an_error(volumes, depth):
    """Closing in mid-epoch ends the loop loudly; the batch at hand keeps its crops."""
    p = pipeline(volumes, depth=depth)
    steps = iter(p)
    next(steps)
    (batch,) = next(steps)
    kept = batch["image"].copy()
    p.close()
    np.testing.assert_array_equal(batch["image"], kept)
    with pytest.raises(damacy.ShutdownError):
        next(steps)
    assert not threads_since()


def test_closing_wakes_a_waiting_loop(volumes):
    """A loop that waits in another thread ends with the error, once the crop that is being read is through."""
    inside, closing, go_on, caught = threading.Event(), threading.Event(), threading.Event(), []

    def slow(fields, key):
        inside.set()
        go_on.wait(60)
        return fields

    def loop():
        try:
            list(p)
        except damacy.ShutdownError as error:
            caught.append(error)

    p = pipeline(volumes, transform=slow)
    p._under_way.append(closing.set)  # called first when it is closed
    both = threading.Thread(target=loop), threading.Thread(target=p.close)
    both[0].start()
    assert inside.wait(30)
    both[1].start()
    assert closing.wait(30)
    go_on.set()
    for thread in both:
        thread.join(30)
    assert len(caught) == 1


def test_several_pipelines_at_once(volumes):
    """Pipelines of one index, of other orders and shapes, in turn in one loop: each has its own crops and position."""
    indexes = [damacy.CropIndex(volumes.images, shape=shape) for shape in ((8, 8, 8), (8, 8, 8), (4, 16, 8))]
    orders = [Order(index, batch_size=9, seed=seed) for seed, index in enumerate(indexes)]
    loaders = [damacy.IndexPipeline(i, order=o, device=None) for i, o in zip(indexes, orders, strict=True)]
    seen = [[] for _ in loaders]
    for steps in zip_longest(*loaders):
        for number, (p, batches) in enumerate(zip(loaders, steps, strict=True)):
            for batch in batches or ():
                for crop, place in zip(batch["image"], p.places(batch), strict=True):
                    box = tuple(slice(a, b) for a, b in zip(place.start, place.stop, strict=True))
                    np.testing.assert_array_equal(crop, volumes.value(place.image)[box])
                seen[number] += batch.ids.tolist()
                p.mark_done(batch.resume)
    for p, ids, index in zip(loaders, seen, indexes, strict=True):
        assert sorted(ids) == list(range(len(index)))
        assert p.state_dict()["epoch"] == 1
        p.close()
    assert seen[0] != seen[1]
