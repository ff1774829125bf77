"""A look at the next batch, how many are left, and what a loop without `mark_done` is told: in every loader."""

import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from anndata.io import sparse_dataset

from rankwise import Order
from rankwise.data import crops
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.rows.samplers import ClassSampler, DistributedSampler, SequentialSampler
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.testing.stores.row_stores import make_stores
from rankwise.testing.stores.small_rows import csr_parts

NUM = 50
IMAGES = np.random.default_rng(0).random((NUM, 3, 4), dtype="f4")


class Noted:
    """A map-style dataset of dicts."""

    def __len__(self):
        return NUM

    def __getitem__(self, at):
        return {"x": torch.from_numpy(IMAGES[at]) + torch.rand(1)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    where = str(tmp_path_factory.mktemp("volume") / "v.zarr")
    zarr.create_array(where, data=np.arange(32**3, dtype="u2").reshape(32, 32, 32), chunks=(8, 16, 16))
    return where


def samples(**options):
    source = ArraySource({"x": IMAGES})
    return SampleLoader(source, order=Order(source, batch_size=8), **options)


def ordered(stores):
    source = RowSource(stores.places, threads=1, obs=("n",))
    return OrderedLoader(source, order=Order(source, batch_size=9), micro_batch=5)


def indexed(volume):
    index = crops.CropIndex([volume], shape=(4, 8, 8))
    return crops.IndexPipeline(index, order=Order(index, batch_size=7), device="cpu")


ORDERED = {
    "samples": lambda _s, _v: samples(),
    "one_thread": lambda _s, _v: samples(depth=0),
    "transformed": lambda _s, _v: samples(transform=lambda fields, key: {"x": fields["x"] + key % 5}),
    "jax": lambda _s, _v: samples(device="jax"),
    "dataset": lambda _s, _v: DatasetLoader(Noted(), order=Order(NUM, batch_size=8)),
    "rows": lambda s, _v: ordered(s),
    "crops": lambda _s, v: indexed(v),
}


def shown(batch):
    names = batch.data if hasattr(batch, "data") else batch
    fields = [batch[name] for name in names]
    return [np.asarray(leaf).tolist() for field in fields for leaf in (csr_parts(field) or (field,))]


@pytest.mark.parametrize("kind", ORDERED)
def test_a_look_moves_nothing(kind, stores, volume):
    """`peek` gives the first batch of what comes next, which stays, at any time; position and order are as without."""
    loader, other = (ORDERED[kind](stores, volume) for _ in range(2))
    first = loader.peek()
    wanted = shown(first)
    assert loader.state_dict() == other.state_dict()
    seen, expected = [], []
    for mine, found in ((loader, seen), (other, expected)):
        for number, batches in enumerate(mine):
            found.append(shown(batches[0]))
            if number == 2:
                mine.mark_done(batches[-1].resume)
                break
    middle = loader.peek()
    assert shown(middle) == shown(next(iter(other))[0])
    assert seen == expected
    assert seen[0] == wanted == shown(first)
    assert [shown(batches[0]) for batches in loader] == [shown(batches[0]) for batches in other]


@pytest.mark.parametrize("kind", ORDERED)
def test_the_length_is_what_comes(kind, stores, volume):
    """``len`` is how many steps the next iteration gives, after a restore too; the epoch's own has a name."""
    loader = ORDERED[kind](stores, volume)
    whole = len(loader)
    for number, batches in enumerate(loader, 1):
        loader.mark_done(batches[-1].resume)
        if number == 3:
            break
    again = ORDERED[kind](stores, volume)
    again.load_state_dict(loader.state_dict())
    assert len(again) == len(loader) == whole - 3
    assert again.num_epoch_steps == len(again.with_full_length()) == whole
    assert len(list(again)) == whole - 3


def drawn(stores, **options):
    loader = Loader(return_index=True, **options)
    for place in stores.places:
        loader.add_dataset(sparse_dataset(zarr.open_group(place, mode="r")["X"]))
    return loader


@pytest.mark.parametrize("to", [None, "torch", "jax"])
@pytest.mark.parametrize("seed", [0, None])
def test_a_look_at_what_a_sampler_draws(stores, to, seed):
    """The first batch of the next pass, though its seed is not drawn yet, in the middle of an epoch too."""
    options = {"batch_size": 7, "chunk_size": 3, "preload_nchunks": 7, "shuffle": True, "to": to, "rng": seed}
    loader = drawn(stores, **options)
    looked = loader.peek()
    steps = iter(loader)
    assert looked["index"].tolist() == next(steps)["index"].tolist()
    if seed is None:
        return
    next(steps)
    again = drawn(stores, **options)
    again.load_state_dict(loader.state_dict())
    assert again.num_left == len(again) - 2
    found = again.peek()["index"].tolist()
    assert found == next(steps)["index"].tolist() == next(iter(again))["index"].tolist()


class Backwards(SequentialSampler):
    """A sampler of a user's, of which nobody knows what it draws."""


def test_a_look_at_other_samplers(stores):
    """Samplers that are not foreseen are copied: what they draw next is drawn all the same."""
    kinds = pd.Categorical(np.arange(len(stores.obs)) // 20)
    classes = ClassSampler(2, 5, 10, classes=kinds, num_samples=60, rng=0)
    for sampler in (Backwards(3, 4, 6), DistributedSampler(classes, dist_info=lambda: (0, 1))):
        loader = drawn(stores, batch_sampler=sampler)
        assert loader.peek()["index"].tolist() == next(iter(loader))["index"].tolist()


def test_forgotten_marks_are_said(caplog):
    """A `DatasetLoader` that shows an epoch twice says so once, in the words of all loaders; chosen epochs do not."""
    loader = DatasetLoader(Noted(), order=Order(NUM, batch_size=8))
    for epoch in range(3):
        loader.set_epoch(epoch)
        list(loader)
    assert "no step was marked done" not in caplog.text
    for _ in range(3):
        list(loader)
    assert caplog.text.count("no step was marked done: the same batches are read again") == 1
