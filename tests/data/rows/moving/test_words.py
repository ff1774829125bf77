"""What annbatch's documentation says in words or pictures, without code; its code is executed by `test_pages.py`."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

from rankwise.data.rows import Loader, write_sharded
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import SequentialSampler, WeightedClassSampler

_spec = importlib.util.spec_from_file_location("making", Path(__file__).with_name("pages") / "making.py")
making = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(making)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """A collection whose rows are sorted by class."""
    return making.grouped_collection(tmp_path_factory.mktemp("grouped") / "c.zarr")


def who_of(batches):
    """Each row's number, as its obs tells it; the matrix agrees."""
    seen = []
    for batch in batches:
        np.testing.assert_array_equal(batch["X"].toarray()[:, 0], batch["obs"]["who"])
        seen += batch["obs"]["who"].tolist()
    return seen


def shuffled(collection, **options):
    return Loader(batch_size=50, chunk_size=10, preload_nchunks=10, shuffle=True, **options).use_collection(collection)


def test_weighted_sampling(grouped):
    """faq: batches follow the weights of classes, over a collection that was written by class."""
    classes = grouped.obs(columns=["cell_type"])["cell_type"].values  # noqa: PD011  (as it is printed there)
    sampler = WeightedClassSampler(10, 32, 64, classes=classes, num_samples=6400, class_weights=[1, 0, 3], rng=0)
    seen = pd.concat([batch["obs"]["cell_type"] for batch in Loader(batch_sampler=sampler).use_collection(grouped)])
    assert abs((seen == "T").mean() - 0.75) < 0.1
    assert not (seen == "NK").any()


def test_random_sampling_of_a_collection_by_class(grouped):
    """faq: it works, too; each pass has another order, and with a generator of the same seed it is the same."""
    loader = shuffled(grouped, rng=np.random.default_rng(0))
    passes = [who_of(loader) for _ in range(2)]
    assert [sorted(seen) for seen in passes] == [making.everyone(2)] * 2
    assert passes[0] != passes[1]
    again = shuffled(grouped, rng=np.random.default_rng(0))
    assert [who_of(again) for _ in range(2)] == passes


def test_sequential_sampling(grouped):
    """api: for evaluation, a range in its order."""
    sampler = SequentialSampler(chunk_size=16, preload_nchunks=4, batch_size=32, mask=slice(100, 240))
    loader = Loader(batch_sampler=sampler, return_index=True).use_collection(grouped)
    assert [row for batch in loader for row in batch["index"].tolist()] == list(range(100, 240))


def test_an_anndata_that_was_written_in_shards(tmp_path):
    """api: `write_sharded` alone makes what a loader reads."""
    made = making.cells(0)
    group = zarr.open_group(tmp_path / "one.zarr", mode="w")
    del made.layers["counts"]
    write_sharded(group, made, n_obs_per_chunk=64, shard_size=128)
    loader = Loader(batch_size=128, chunk_size=32, preload_nchunks=64, shuffle=False).use_collection(
        tmp_path / "one.zarr"
    )
    assert who_of(loader) == made.obs["who"].tolist()


class PicturedSampler(Sampler):
    """The request that the guide draws, with the batches that it draws."""

    batch_size, shuffle = 4, False

    def _sample(self, n_obs):
        yield {
            "requests": [slice(200, 300), slice(700, 800), slice(0, 100), slice(500, 600)],
            "splits": [np.array([0, 50, 150, 250]), np.array([1, 51, 151, 251]), np.array([2, 52, 152])],
        }


def test_the_guides_picture_of_a_request():
    """custom-sampler: splits name places in the runs one behind the other, whatever datasets these lie in."""
    rows = np.arange(1000.0)[:, None]
    cut = [rows[:250], rows[250:555], rows[555:]]  # runs cross the edges of datasets
    batches = list(Loader(batch_sampler=PicturedSampler(), return_index=True).add_datasets(cut))
    wanted = [[200, 250, 750, 50], [201, 251, 751, 51], [202, 252, 752]]
    assert [batch["index"].tolist() for batch in batches] == wanted
    assert [batch["X"][:, 0].tolist() for batch in batches] == wanted
