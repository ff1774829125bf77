"""What every loader over an order keeps to, whatever its samples are: one suite, by public names."""

import json

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline
from rankwise.data.rows import OrderedLoader, RowSource
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.errors import RankwiseError
from rankwise.testing.new_threads import mark_threads, threads_since
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.row_stores import make_stores

NUM = 50
IMAGES = np.random.default_rng(0).random((NUM, 3, 4), dtype="f4")
# steps after which a run stops, and the world sizes before and after
STOPS = [(1, 1, 2), (3, 2, 3), (2, 3, 1)]


class Images:
    """A map-style dataset."""

    fingerprint = "images"

    def __len__(self):
        return NUM

    def __getitem__(self, at):
        return {"x": IMAGES[at]}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Places of AnnData stores and of a volume."""
    where = tmp_path_factory.mktemp("data")
    (where / "rows").mkdir()
    data = np.random.default_rng(1).integers(0, 60_000, (24, 32, 32)).astype("u2")
    zarr.create_array(str(where / "v.zarr"), data=data, chunks=(8, 16, 16))
    return {"rows": make_stores(where / "rows").places, "volume": str(where / "v.zarr")}


def samples(_places, **options):
    source = ArraySource({"x": IMAGES})
    return SampleLoader(source, order=Order(source, batch_size=12), device=None, **options)


def dataset(_places, **options):
    return DatasetLoader(Images(), order=Order(Images(), batch_size=12), device=None, **options)


def sparse_rows(places, **options):
    source = RowSource(places["rows"], threads=1, obs=("n",))
    return OrderedLoader(source, order=Order(source, batch_size=17), device=None, **options)


def dense_rows(places, **options):
    source = RowSource(places["rows"], threads=1, matrices=("layers/full", "obsm/pca"))
    return OrderedLoader(source, order=Order(source, batch_size=17), device=None, **options)


def rows_by_name(places, **options):
    return OrderedLoader(places["rows"], order=Order(places["rows"], batch_size=17), dense=True, device=None, **options)


def tiles(places, **options):
    index = CropIndex([places["volume"]], shape=(8, 8, 8))
    return IndexPipeline(index, order=Order(index, batch_size=9), device=None, **options)


def random_crops(places, **options):
    index = CropIndex([places["volume"]], shape=(8, 8, 8), num_random=40)
    return IndexPipeline(index, order=Order(index, batch_size=9), device=None, **options)


LOADERS = {
    made.__name__: made for made in (samples, dataset, sparse_rows, dense_rows, rows_by_name, tiles, random_crops)
}


@pytest.fixture(params=LOADERS)
def make(request, places):
    """Return a function that makes one kind of loader, for a rank of a world of so many."""

    def made(rank=0, size=1, **options):
        return LOADERS[request.param](places, world=RankPlace(rank, size), **options)

    made.kind = request.param
    return made


def content(values):
    """The bytes of each sample of a field."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    return [np.asarray(value).tobytes() for value in values]


def samples_of(batch):
    """What is in a batch, by id: copies, for its memory is filled again."""
    names = sorted(batch.fields) if hasattr(batch, "fields") else sorted(batch.data)
    fields = [content(batch[name]) for name in names]
    return {(int(i), int(key)): parts for i, key, *parts in zip(batch.ids, batch.key, *fields, strict=True)}


def seen(loader, *, steps=None):
    """The steps of this rank up to the end of the epoch, or so many; marks them done."""
    found = []
    for batches in loader:
        found.append({key: parts for batch in batches for key, parts in samples_of(batch).items()})
        loader.mark_done(batches[0].resume)
        if steps is not None and len(found) == steps:
            break
    return found


def world(make, size, *, state=None, steps=None, **options):
    """The steps of all ranks together, and the state after them, which is the same on each."""
    ranks, states = [], []
    for rank in range(size):
        with make(rank, size, **options) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            ranks.append(seen(loader, steps=steps))
            states.append(loader.state_dict())
    assert states == states[:1] * size
    assert all(len(found) == len(ranks[0]) for found in ranks)
    together = [{key: parts for one in step for key, parts in one.items()} for step in zip(*ranks, strict=True)]
    assert [len(step) for step in together] == [sum(map(len, step)) for step in zip(*ranks, strict=True)]
    return together, states[0]


def test_every_sample_comes_once_in_the_same_steps_at_any_world_size(make):
    """And in other steps in the next epoch; micro-batches cut shares, and change nothing else."""
    alone, after = world(make, 1)
    assert after["epoch"] == 1
    ids = [key[0] for step in alone for key in step]
    with make() as loader:
        assert sorted(ids) == list(range(loader.order.num_samples(0)))
        assert len(loader) == loader.num_epoch_steps == len(alone)
        loader.set_epoch(1)
        following = seen(loader)
    assert [sorted(key[0] for key in step) for step in following] != [sorted(key[0] for key in step) for step in alone]
    for size in (2, 3):
        assert world(make, size, micro_batch=2)[0] == alone


@pytest.mark.parametrize(("steps", "before", "later"), STOPS)
def test_a_run_goes_on_in_mid_epoch_as_another_world(make, steps, before, later):
    """What is left of the epoch, bit for bit, from a state that was JSON meanwhile."""
    whole, _ = world(make, 1)
    first, state = world(make, before, steps=steps)
    assert first == whole[:steps]
    rest, end = world(make, later, state=state)
    assert rest == whole[steps:]
    assert end["epoch"] == 1


def test_the_epoch_can_be_set_and_reached(make):
    """An epoch that is set is the one that is reached; setting the epoch one stands in changes nothing."""
    with make() as loader:
        loader.set_epoch(2)
        wanted = seen(loader)
    with make() as loader:
        found = [seen(loader) for _ in range(3)]
        assert found[2] == wanted
        loader.set_epoch(3)
        begun = seen(loader, steps=2)
        loader.set_epoch(3)
        assert len(loader) == len(wanted) - 2
        rest = seen(loader)
    with make() as loader:
        loader.set_epoch(3)
        assert seen(loader) == begun + rest


def test_what_is_read_ahead_changes_nothing(make):
    """Neither before the first step nor over the end of an epoch."""
    with make(**({} if make.kind == "dataset" else {"across_epochs": False})) as loader:
        wanted = [seen(loader), seen(loader)]
    with make() as loader:
        loader.start_prefetch()
        first = seen(loader)
        loader.start_prefetch()
        loader.expect_last_epoch()
        assert [first, seen(loader)] == wanted


def test_a_loader_closes_in_mid_epoch_and_twice(make):
    """No thread stays, with a step in hand or without; a closed one says so, and another goes on from its state."""
    mark_threads()
    loader = make()
    batches = next(iter(loader))
    kept = samples_of(batches[0])
    loader.close()
    loader.close()
    assert not threads_since()
    assert samples_of(batches[0]) == kept
    with pytest.raises(RankwiseError, match="was closed: create a new one and load this one's state"):
        next(iter(loader))
    other = make()
    other.load_state_dict(loader.state_dict())
    assert samples_of(next(iter(other))[0]) == kept
    other.close()
    assert not threads_since()


def test_what_a_notebook_shows_tells_steps_and_samples(make):
    """The class, the steps that are left, and the source with its fields."""
    with make() as loader:
        text = repr(loader)
        assert text.startswith(f"{type(loader).__name__}({len(loader)} steps to the end of the epoch; ")
        assert " object at 0x" not in text
        assert make.kind == "dataset" or all(f"{name}: " in text for name in loader.source.fields)


def test_states_of_other_data_are_refused(make, places):
    """By name of what differs; the loader stays where it was."""
    with make() as loader:
        first = seen(loader, steps=1)
        state = loader.state_dict()
        for change in ({"recipe": "v1.shuffle.L8.W4.61228273bb389eb2"}, {"seed": "x"}, {"position": -1}):
            with pytest.raises(RankwiseError):
                loader.load_state_dict({**state, **change})
        assert loader.state_dict() == state
        rest = seen(loader)
    assert first + rest == world(make, 1)[0]
