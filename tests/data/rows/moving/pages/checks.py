"""Whether what annbatch's pages have made is right: every row is the one that it says it is."""

import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from making import KINDS, cells, everyone, grouped_collection, many_cells, rare_variants

from rankwise.data.rows import DatasetCollection, Loader


def check(page, names):
    """Look at the names that a page has left behind; an assertion fails if something is wrong."""
    PAGES[page](names)


def dense(x):
    return x.to_dense().numpy() if isinstance(x, torch.Tensor) else x.toarray()


def who_of(batches, times=1):
    """Each row's number, as its obs tells it; the matrix agrees."""
    seen = []
    for batch in batches:
        who = batch["obs"]["who"].to_numpy()
        np.testing.assert_array_equal(dense(batch["X"])[:, 0], times * who)
        seen += who.tolist()
    return seen


def rows_in(collection):
    """Those that a loader of a whole collection brings, sorted."""
    loader = Loader(batch_size=64, chunk_size=64, preload_nchunks=4, shuffle=True)
    return sorted(who_of(loader.use_collection(collection)))


def readme(names):
    """A layer instead of X, two columns of obs, sparse tensors; the codes of all categories."""
    assert sorted(who_of(names["ds"], times=2)) == everyone(2)
    batch = next(iter(names["ds"]))
    assert batch["X"].layout == torch.sparse_csr
    assert list(batch["obs"]) == names["some_subset_of_columns_useful_for_training"]
    assert list(batch["obs"]["cell_type"].cat.categories) == KINDS


def walkthrough(names):
    """X and all of obs, no index; a seed decides, and torch's seed does not."""
    assert sorted(who_of(names["ds"])) == everyone(2)
    assert {"cell_type", "who", "label", "src_path"} <= set(names["df"].columns)
    assert names["index"] is None
    seeded = [names["sampler"], names["RandomSampler"](32, 8, 64, rng=np.random.default_rng(42))]
    passes = []
    for seed, sampler in enumerate(seeded):
        torch.manual_seed(seed)
        passes.append(who_of(Loader(batch_sampler=sampler).use_collection(names["collection"])))
    assert passes[0] == passes[1] != sorted(passes[0])


def faq(names):
    """Nine tenths to train on, in another order; the last tenth as it is stored."""
    rows = np.arange(1_000_000, dtype="float32")[:, None]
    train, val = (
        np.concatenate([batch["X"].ravel().copy() for batch in names[name].add_dataset(rows)])
        for name in ("train", "val")
    )
    np.testing.assert_array_equal(np.sort(train), rows[:900_000, 0])
    assert (np.diff(train[:1000]) < 0).any()
    np.testing.assert_array_equal(val, rows[900_000:, 0])


def configuration(names):
    """What the page sets is set. Its second block also unsets the pipeline, and then zarr opens no array at all."""
    assert zarr.config.get("codec_pipeline") == {"direct_io": False}
    assert (zarr.config.get("threading.max_workers"), zarr.config.get("async.concurrency")) == (None, 64)
    with pytest.raises(KeyError, match="path"):
        zarr.zeros(3)
    set_here = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.direct_io": False}
    zarr.config.reset()
    zarr.config.set({**set_here, "threading.max_workers": None, "async.concurrency": 64})
    assert rows_in(grouped_collection("c.zarr")) == everyone(2)


def preshuffling(names):
    """Matrices that are opened lazily, by paths that a generator names."""
    assert rows_in(names["collection"]) == everyone(2)


def custom_samplers(names):
    """Both run as they are printed, with nothing but `_sample`: chunks in random order, and single rows."""
    collection = grouped_collection("grouped.zarr")
    sampler = names["InOrderSampler"](batch_size=4, chunk_size=30)
    loader = Loader(batch_sampler=sampler, return_index=True).use_collection(collection)
    batches = [batch["index"].tolist() for batch in loader]
    assert len(batches) == len(loader) == 16 * 8 + 5
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert all(batch == list(range(batch[0], batch[0] + len(batch))) for batch in batches)
    loader = Loader(batch_sampler=names["RandomSampler"](500, 100), return_index=True).use_collection(collection)
    rows = [row for batch in loader for row in batch["index"].tolist()]
    assert len(loader) == 5
    assert sorted(rows) == list(range(500)) != rows
    assert sorted(who_of(loader)) == everyone(2)


def quickstart(names):
    """The rows and labels of both stores, each once."""
    made = pd.concat([names["_make_adata"](size, seed).obs for seed, size in enumerate((3000, 2000))])
    x = np.concatenate([names["_make_adata"](size, seed).X.toarray() for seed, size in enumerate((3000, 2000))])
    seen = []
    for batch in names["loader"]:
        rows = made.index.get_indexer(batch["obs"].index)
        np.testing.assert_array_equal(dense(batch["X"]), x[rows])
        assert (batch["obs"]["cell_type"].astype(str) == made["cell_type"].astype(str).iloc[rows]).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(5000)) != seen


def scrnaseq(names):
    """Raw counts and labels of both files; the loader was made before the collection was extended."""
    types = {number: many_cells(number).obs["cell_type"].astype(str).to_numpy() for number in (1, 2)}
    seen = {1: [], 2: []}
    for batch in names["loader"]:
        told = np.array([name.split("-") for name in batch["obs"].index], dtype=int)
        np.testing.assert_array_equal(dense(batch["X"])[:, 0], told[:, 1] + 1)
        for number in (1, 2):
            mine = told[:, 0] == number
            seen[number] += told[mine, 1].tolist()
            assert (batch["obs"]["cell_type"].to_numpy()[mine] == types[number][told[mine, 1]]).all()
    assert [sorted(rows) for rows in seen.values()] == [list(range(len(its))) for its in types.values()]


def images(names):
    """Every image with its own cell, whole."""
    stacks = dict(zip(("stimulated_small", "unstimulated_small"), names["made"], strict=True))
    seen = []
    for batch in names["loader"]:
        for name, image in zip(batch["obs"].index, batch["X"].numpy(), strict=True):
            stack, _, row = name.rpartition("_")
            np.testing.assert_array_equal(image, stacks[stack][int(row)])
        seen += batch["obs"].index.tolist()
    assert sorted(seen) == sorted(f"{stack}_{row}" for stack in stacks for row in range(30))


def genetics(names):
    """Genotypes as small integers, in the order in which the collection names people; no obs, for none was loaded."""
    order = [int(name[2:]) for name in names["collection"].obs().index]
    assert sorted(order) == list(range(3202)) != order
    batches = [dict(batch, X=batch["X"].clone()) for batch in names["loader"]]
    assert all(batch["obs"] is None for batch in batches)
    assert batches[0]["X"].dtype == torch.int8
    wanted = rare_variants(3202, 20_000)[order]
    for number, batch in enumerate(batches):
        difference = wanted[512 * number : 512 * (number + 1)].toarray() != dense(batch["X"])
        assert not difference.any()


def distributed(names):
    """Ranks share no row. An epoch leaves 16 of each rank's rows out, as there; here the next one shows them."""
    epochs = []
    for rank in range(2):
        sampler = names["RandomSampler"](chunk_size=64, preload_nchunks=32, batch_size=256)
        sampler = names["DistributedSampler"](sampler, dist_info=lambda rank=rank: (rank, 2))
        loader = Loader(batch_sampler=sampler).use_collection(names["collection"], load_adata=names["_load_x"])
        epochs += [{row.tobytes() for batch in loader for row in dense(batch["X"])} for _ in range(2)]
    assert [len(rows) for rows in epochs] == [9984] * 4
    assert [len(epochs[0] | epochs[1]), len(epochs[2] | epochs[3])] == [10_000] * 2
    assert len(set.union(*epochs)) == 20_000


def examples_of_io(names):
    """Classes out of obs; a store without what its function left out."""
    whole = DatasetCollection("path/to/collection.zarr")
    assert isinstance(whole.obs(columns=["cell_type"])["cell_type"].values, pd.Categorical)
    assert list(names["classes"].categories) == KINDS
    written = DatasetCollection("path/to/output/zarr_store.zarr")
    assert ["layers/counts" in group for made in (whole, written) for group in made] == [True, False]
    assert rows_in(written) == everyone(3)


def example_of_loader(names):
    """All rows of an AnnData in memory."""
    assert who_of(names["fitted"]) == cells(0).obs["who"].tolist()


def example_of_class_sampler(names):
    """A hundred batches, each of one class, all classes."""
    kinds = [batch["obs"]["categories"].astype(str).tolist() for batch in names["loader"]]
    assert [len(batch) for batch in kinds] == [10] * 100
    assert all(len(set(batch)) == 1 for batch in kinds)
    assert sorted({batch[0] for batch in kinds}) == KINDS


def examples_of_distributed_sampler(names):
    """The last one stands for rank 2 of 3, which gets a third of 1,000 rows in whole batches."""
    rows = [run for request in names["dist_sampler"].sample(1000) for run in request["requests"]]
    assert {row for run in rows for row in range(run.start, run.stop)} <= set(range(666, 1000))
    assert names["dist_sampler"].n_batches(1000) == 10


PAGES = {
    "README.md": readme,
    "docs/custom-sampler.md": custom_samplers,
    "docs/detailed-walkthrough.md": walkthrough,
    "docs/faq.md": faq,
    "docs/preshuffling.md": preshuffling,
    "docs/tutorials/distributed.ipynb": distributed,
    "docs/tutorials/genetics.ipynb": genetics,
    "docs/tutorials/images.ipynb": images,
    "docs/tutorials/quickstart.ipynb": quickstart,
    "docs/tutorials/scrnaseq.ipynb": scrnaseq,
    "docs/zarr-configuration.md": configuration,
    "src/annbatch/io.py": examples_of_io,
    "src/annbatch/loader.py": example_of_loader,
    "src/annbatch/samplers/_class_samplers/_class_sampler.py": example_of_class_sampler,
    "src/annbatch/samplers/_distributed_sampler.py": examples_of_distributed_sampler,
}
