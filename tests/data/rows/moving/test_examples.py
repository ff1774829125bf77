"""What annbatch 0.3.1 documents, called here as it is called there: only the import is another one.

Each test names its page. Data are small, and made here; tensors stay on the CPU where a page says `.cuda()`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
import zarr

from rankwise.data.rows import DatasetCollection, Loader, write_sharded
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import (
    ClassSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedClassSampler,
)
from rankwise.data.rows.types import LoadRequest

SIZES = (300, 200)
NUM_GENES = 40

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
    pytest.mark.filterwarnings("ignore:raw of .* is left out:UserWarning"),
]


def cells(number):
    """So many cells whose first gene counts their number: rows say who they are."""
    rng = np.random.default_rng(number)
    counts = rng.poisson(0.3, (SIZES[number], NUM_GENES)).astype("float32")
    counts[:, 0] = np.arange(1, SIZES[number] + 1) + 1000 * number
    kinds = pd.Categorical(rng.choice(["B", "T", "NK"], SIZES[number]), categories=["B", "NK", "T"])
    obs = pd.DataFrame({"cell_type": kinds, "who": counts[:, 0]}, index=[f"{number}-{k}" for k in range(SIZES[number])])
    made = ad.AnnData(sp.csr_matrix(counts), obs=obs, var=pd.DataFrame(index=[f"gene_{k}" for k in range(NUM_GENES)]))
    made.layers["counts"] = made.X * 2
    made.raw = made.copy()
    return made


EVERYONE = sorted(who for number in range(2) for who in cells(number).obs["who"].tolist())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two h5ad files and two Zarr stores of the same cells, and a collection of them sorted by cell type."""
    folder = tmp_path_factory.mktemp("files")
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=True):
        for number in range(2):
            cells(number).write_h5ad(folder / f"file{number}.h5ad")
            cells(number).write_zarr(folder / f"file{number}.zarr")
    collection = DatasetCollection(zarr.open(folder / "grouped.zarr", mode="w"))
    collection.add_adatas([folder / "file0.zarr", folder / "file1.zarr"], groupby="cell_type", rng=0)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder that a notebook runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def grouped(files):
    return DatasetCollection(files / "grouped.zarr", mode="r")


def who_of(batches):
    """Each row's number, as its obs tells it; the matrix agrees."""
    seen = []
    for batch in batches:
        x = batch["X"].to_dense().numpy() if isinstance(batch["X"], torch.Tensor) else batch["X"].toarray()
        assert (x[:, 0] == batch["obs"]["who"]).all()
        seen += batch["obs"]["who"].tolist()
    return seen


def test_quickstart(files, here):
    """tutorials/quickstart: convert, load with chosen columns read lazily, iterate."""
    pytest.importorskip("xarray")
    collection = DatasetCollection(zarr.open("quickstart_collection.zarr", mode="w"))
    collection.add_adatas(adata_paths=[str(files / f"file{k}.zarr") for k in range(2)], shuffle=True)

    def _load_adata(group: zarr.Group) -> ad.AnnData:
        return ad.AnnData(
            X=ad.io.sparse_dataset(group["X"]),
            obs=ad.experimental.read_lazy(group).obs[["cell_type", "who"]].to_memory(),
        )

    loader = Loader(batch_size=128, chunk_size=64, preload_nchunks=32, preload_to_gpu=False).use_collection(
        collection, load_adata=_load_adata
    )
    assert sorted(who_of(loader)) == EVERYONE
    assert set(next(iter(loader))["obs"]["cell_type"]) == {"B", "NK", "T"}


def test_readme(files, here):
    """README: h5ad files to a path, a layer instead of X, categories kept, tensors."""
    collection = DatasetCollection("path/to/output/collection.zarr")
    collection.add_adatas(adata_paths=[f"{files}/file0.h5ad", f"{files}/file1.h5ad"], shuffle=True)

    def custom_load_func(g: zarr.Group) -> ad.AnnData:
        return ad.AnnData(
            X=ad.io.sparse_dataset(g["layers"]["counts"]), obs=ad.io.read_elem(g["obs"])[["cell_type", "who"]]
        )

    collection = DatasetCollection("path/to/output/collection.zarr")
    with ad.settings.override(remove_unused_categories=False):
        ds = Loader(batch_size=64, chunk_size=32, preload_nchunks=8, to="torch")
        ds = ds.use_collection(collection, load_adata=custom_load_func)
    seen = []
    for batch in ds:
        x, obs = batch["X"], batch["obs"]
        assert x.layout == torch.sparse_csr
        assert (x.to_dense()[:, 0].numpy() == 2 * obs["who"]).all()
        seen += obs["who"].tolist()
    assert sorted(seen) == EVERYONE


def test_walkthrough(files, here):
    """detailed-walkthrough: `add_adatas` returns the collection; without `load_adata` X and all of obs come."""
    collection = DatasetCollection("store.zarr").add_adatas(
        adata_paths=[files / "file0.h5ad", files / "file1.h5ad"], shuffle=True
    )
    ds = Loader(batch_size=256, chunk_size=32, preload_nchunks=64).use_collection(collection)
    for batch in ds:
        x, df, index = batch["X"], batch["obs"], batch["index"]
        assert x.shape == (len(df), NUM_GENES)
        assert {"cell_type", "who", "src_path"} <= set(df.columns)
        assert index is None
    rng = np.random.default_rng(42)
    sampler = RandomSampler(32, 8, 64, rng=rng)
    torch.manual_seed(0)  # without influence, as the page says
    first = [b["obs"]["who"].tolist() for b in Loader(batch_sampler=sampler).use_collection(collection)]
    torch.manual_seed(1)
    sampler = RandomSampler(32, 8, 64, rng=np.random.default_rng(42))
    assert [b["obs"]["who"].tolist() for b in Loader(batch_sampler=sampler).use_collection(collection)] == first


def test_scrnaseq(files, here):
    """tutorials/scrnaseq: raw counts read lazily, sizes in cells, a second `add_adatas`."""
    pytest.importorskip("xarray")

    def _to_raw_counts(path: str) -> ad.AnnData:
        a = ad.experimental.read_lazy(path)
        x, var = (a.raw.X, a.raw.var) if a.raw is not None else (a.X, a.var)
        return ad.AnnData(X=x, obs=a.obs[["cell_type", "who"]].to_memory(), var=var.to_memory())

    paths = [str(files / f"file{k}.h5ad") for k in range(2)]
    collection = DatasetCollection(zarr.open("scrnaseq_collection.zarr", mode="w"))
    collection.add_adatas(adata_paths=paths, load_adata=_to_raw_counts, shuffle=True, dataset_size=300)
    assert len(list(collection)) == 2
    assert (
        sorted(who_of(Loader(batch_size=64, chunk_size=64, preload_nchunks=4).use_collection(collection))) == EVERYONE
    )
    with (
        pytest.warns(UserWarning, match="300 new rows are shuffled among themselves"),
        pytest.warns(UserWarning, match="has rows of .*file0.h5ad already"),
    ):
        collection.add_adatas(adata_paths=paths[:1], load_adata=_to_raw_counts)
    assert collection.obs(columns=["cell_type"]).shape[0] == sum(SIZES) + SIZES[0]


def test_images(here):
    """tutorials/images: stacks of images in obsm, no X; their arrays with their obs to `add_datasets`."""
    pytest.importorskip("dask")
    images = np.arange(2 * 30 * 5 * 8 * 8).reshape(2, 30, 5, 8, 8).astype("float16")
    paths = []
    for number in range(2):
        obs = pd.DataFrame({"first": images[number, :, 0, 0, 0].astype("float32")}, index=list(map(str, range(30))))
        made = ad.AnnData(obs=obs, obsm={"single_cell_images": images[number]})
        made.write_h5ad(f"stack{number}.h5sc")
        paths.append(f"stack{number}.h5sc")
    opened = []

    def _load_images(path: str) -> ad.AnnData:
        f = h5py.File(path, "r")
        opened.append(f)
        obs = ad.io.read_elem(f["obs"])
        held = ad.experimental.read_elem_lazy(f["obsm"]["single_cell_images"], chunks=(16, -1, -1, -1))
        obs.index = f"{Path(path).stem}_" + obs.index.astype(str)
        return ad.AnnData(obs=obs, obsm={"single_cell_images": held})

    collection = DatasetCollection(zarr.open("images_collection.zarr", mode="w"))
    collection.add_adatas(
        adata_paths=paths, load_adata=_load_images, shuffle=True, n_obs_per_chunk=16, dataset_size=100_000
    )
    arrays = [group["obsm"]["single_cell_images"] for group in collection]
    obs = [ad.io.read_elem(group["obs"]) for group in collection]
    loader = Loader(batch_size=16, chunk_size=8, preload_nchunks=32, preload_to_gpu=False).add_datasets(
        datasets=arrays, obs=obs
    )
    seen = []
    for batch in loader:
        assert batch["X"].dtype == np.float16
        assert batch["X"].shape[1:] == (5, 8, 8)
        np.testing.assert_array_equal(batch["X"][:, 0, 0, 0], batch["obs"]["first"])
        seen += batch["obs"].index.tolist()
    assert sorted(seen) == sorted(f"stack{k}_{row}" for k in range(2) for row in range(30))
    for f in opened:
        f.close()


def test_genetics(here):
    """tutorials/genetics, from its AnnData store on: names from columns, int8 genotypes, no obs in batches."""
    genotypes = sp.random(90, 300, density=0.05, format="csr", random_state=0, data_rvs=np.ones)
    made = ad.AnnData(
        genotypes.astype("int8"),
        obs=pd.DataFrame({"iid": [f"HG{k:03}" for k in range(90)]}, index=list(map(str, range(90)))),
        var=pd.DataFrame({"2": [f"22:{k}:A:C" for k in range(300)]}, index=list(map(str, range(300)))),
    )
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=True):
        made.write_zarr("rare.zarr")

    def _load_genotypes(path: str) -> ad.AnnData:
        a = ad.read_zarr(path)
        a.obs = a.obs[["iid"]].astype({"iid": "str"}).set_index("iid")
        a.var = pd.DataFrame(index=a.var["2"].astype("str").to_numpy())
        return a

    def _load_x(group: zarr.Group) -> ad.AnnData:
        return ad.AnnData(X=ad.io.sparse_dataset(group["X"]))

    collection = DatasetCollection(zarr.open("genetics_collection.zarr", mode="w"))
    collection.add_adatas(adata_paths=["rare.zarr"], load_adata=_load_genotypes, shuffle=True)
    loader = Loader(batch_size=512, chunk_size=64, preload_nchunks=32, preload_to_gpu=False, to="torch").use_collection(
        collection, load_adata=_load_x
    )
    (batch,) = loader
    assert batch["obs"] is None
    order = [int(name[2:]) for name in collection.obs().index]
    wanted = genotypes.toarray()[order]
    np.testing.assert_array_equal(batch["X"].to_dense().float().numpy(), wanted)


def test_preshuffling(files, here):
    """preshuffling: any iterable of paths, matrices that are read lazily out of Zarr, sizes as text."""
    pytest.importorskip("dask")

    def load_adata(path):
        group = zarr.open(path, mode="r")
        var, obs = ad.io.read_elem(group["var"]), ad.io.read_elem(group["obs"])
        return ad.AnnData(X=ad.experimental.read_elem_lazy(group["X"]), var=var, obs=obs)

    collection = DatasetCollection("path_to_collection.zarr")
    collection.add_adatas(
        adata_paths=files.glob("file*.zarr"), load_adata=load_adata, n_obs_per_chunk=64, dataset_size="64GB"
    )
    assert (
        sorted(who_of(Loader(batch_size=64, chunk_size=64, preload_nchunks=4).use_collection(collection))) == EVERYONE
    )


def test_add_adatas_of_the_api(files, here):
    """api/DatasetCollection: paths by position, an own function that leaves layers out; classes out of obs."""
    pytest.importorskip("xarray")

    def read_lazy_x_and_obs_only(path):
        adata = ad.experimental.read_lazy(path)
        return ad.AnnData(X=adata.X, obs=adata.obs.to_memory(), var=adata.var.to_memory())

    DatasetCollection("zarr_store.zarr").add_adatas(
        [files / "file0.h5ad", files / "file1.h5ad"], load_adata=read_lazy_x_and_obs_only
    )
    collection = DatasetCollection("zarr_store.zarr")
    assert "layers" not in next(iter(collection)) or not list(next(iter(collection))["layers"])
    assert isinstance(collection.obs(columns=["cell_type"])["cell_type"].values, pd.Categorical)
    assert len(pd.Categorical(collection.obs(columns=["who"])["who"])) == sum(SIZES)


def test_loader_and_write_sharded_of_the_api(here):
    """api/Loader and api/write_sharded: one AnnData in memory; one that was written sharded."""
    made = cells(0)
    del made.layers["counts"]
    ds = Loader(batch_size=128, chunk_size=32, preload_nchunks=64).add_adata(made)
    assert who_of(ds) == made.obs["who"].tolist()
    group = zarr.open_group("one.zarr", mode="w")
    write_sharded(group, made, n_obs_per_chunk=64, shard_size=128)
    assert who_of(Loader(batch_size=128, chunk_size=32, preload_nchunks=64).use_collection("one.zarr")) == who_of(ds)


def test_class_samplers(grouped):
    """api/ClassSampler and the FAQ: batches of one class, batches by weight, and a RandomSampler on grouped data."""
    classes = grouped.obs(columns=["cell_type"])["cell_type"].values  # noqa: PD011  (as it is printed there)
    sampler = ClassSampler(chunk_size=10, preload_nchunks=4, batch_size=10, classes=classes, num_samples=1000)
    loader = Loader(batch_sampler=sampler).use_collection(grouped)
    batches = list(loader)
    assert [len(b["obs"]) for b in batches] == [10] * 100
    assert all(len(set(b["obs"]["cell_type"])) == 1 for b in batches)
    sampler = WeightedClassSampler(
        chunk_size=10,
        preload_nchunks=32,
        batch_size=64,
        classes=classes,
        num_samples=6400,
        class_weights=[1, 0, 3],
        rng=0,
    )
    seen = pd.concat([b["obs"]["cell_type"] for b in Loader(batch_sampler=sampler).use_collection(grouped)])
    assert abs((seen == "T").mean() - 0.75) < 0.1
    assert not (seen == "NK").any()
    loader = Loader(batch_size=50, chunk_size=10, preload_nchunks=10, shuffle=True).use_collection(grouped)
    assert sorted(who_of(loader)) == EVERYONE


class InOrderSampler(Sampler):
    """The first of the guide (custom-sampler): chunks in random order, rows inside in order; nothing but `_sample`."""

    def __init__(self, batch_size: int, chunk_size: int):
        self.batch_size = batch_size
        self.chunk_size = chunk_size

    def _sample(self, n_obs: int):
        chunk_starts = list(range(0, n_obs, self.chunk_size))
        np.random.default_rng().shuffle(chunk_starts)
        for start in chunk_starts:
            size = min(start + self.chunk_size, n_obs) - start
            firsts = range(0, size, self.batch_size)
            yield {
                "requests": [slice(start, start + size)],
                "splits": [np.arange(first, min(first + self.batch_size, size)) for first in firsts],
            }


class SingleRows(Sampler):
    """The second of the guide: every row a slice of its own."""

    def __init__(self, n_obs: int, batch_size: int):
        self.n_obs = n_obs
        self.batch_size = batch_size

    def _sample(self, n_obs: int):
        for part in np.array_split(np.random.default_rng().permutation(self.n_obs), self.n_obs // self.batch_size):
            yield LoadRequest(splits=[np.arange(self.batch_size)], requests=[slice(row, row + 1) for row in part])


def test_custom_sampler_guide(grouped):
    """custom-sampler: both of its samplers run as they are printed; annbatch itself asks for four methods more."""
    loader = Loader(batch_sampler=InOrderSampler(batch_size=4, chunk_size=30), return_index=True)
    loader.use_collection(grouped)
    batches = [batch["index"].tolist() for batch in loader]
    assert len(batches) == len(loader) == 16 * 8 + 5
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert all(batch == list(range(batch[0], batch[0] + len(batch))) for batch in batches)
    loader = Loader(batch_sampler=SingleRows(500, 100), return_index=True).use_collection(grouped)
    rows = [row for batch in loader for row in batch["index"].tolist()]
    assert len(loader) == 5
    assert sorted(rows) == list(range(500)) != rows


def test_the_guides_picture_of_a_request():
    """custom-sampler: splits name places in the concatenated runs, whatever datasets these lie in."""

    class Pictured(InOrderSampler):
        def _sample(self, n_obs):
            yield {
                "requests": [slice(200, 300), slice(700, 800), slice(0, 100), slice(500, 600)],
                "splits": [np.array([0, 50, 150, 250]), np.array([1, 51, 151, 251]), np.array([2, 52, 152])],
            }

    rows = np.arange(1000.0)[:, None]
    cut = [rows[:250], rows[250:555], rows[555:]]  # runs cross the edges of datasets
    batches = list(Loader(batch_sampler=Pictured(4, 100), return_index=True).add_datasets(cut))
    wanted = [[200, 250, 750, 50], [201, 251, 751, 51], [202, 252, 752]]
    assert [batch["index"].tolist() for batch in batches] == wanted
    assert [batch["X"][:, 0].tolist() for batch in batches] == wanted


TORCHRUN = """
import json, sys
import anndata as ad
import torch.distributed as dist
import zarr
from rankwise.data.rows import DatasetCollection, Loader
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
collection = DatasetCollection(zarr.open(sys.argv[1], mode="r"))
sampler = DistributedSampler(RandomSampler(chunk_size=8, preload_nchunks=8, batch_size=32), dist_info="torch")
loader = Loader(batch_sampler=sampler, preload_to_gpu=False, return_index=True, to="torch").use_collection(
    collection, load_adata=lambda g: ad.AnnData(X=ad.io.sparse_dataset(g["X"]))
)
rows = [row for batch in loader for row in batch["index"].tolist() if batch["X"].to_dense().shape == (32, 40)]
with open(f"{sys.argv[2]}/{rank}.json", "w") as told:
    json.dump([world, len(loader), rows], told)
dist.barrier()
dist.destroy_process_group()
"""


def test_distributed_ranks(files, tmp_path):
    """tutorials/distributed: the script of its end under torchrun, two real ranks: disjoint, equally many batches."""
    (tmp_path / "ddp_train.py").write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ddp_train.py"]
    done = subprocess.run(
        [*command, str(files / "grouped.zarr"), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [(world, count, len(rows)) for world, count, rows in told] == [(2, 7, 7 * 32)] * 2
    assert not set(told[0][2]) & set(told[1][2])


def test_distributed_shards(grouped):
    """tutorials/distributed and api/DistributedSampler: shards looked at with a function, in one process."""
    for rank in range(2):
        sampler = DistributedSampler(
            RandomSampler(chunk_size=64, preload_nchunks=32, batch_size=32), dist_info=lambda rank=rank: (rank, 2)
        )
        loader = Loader(batch_sampler=sampler, preload_to_gpu=False).use_collection(
            grouped, load_adata=lambda g: ad.AnnData(X=ad.io.sparse_dataset(g["X"]))
        )
        assert len(loader) == len(list(loader)) == 7


def test_sequential(grouped):
    """api/SequentialSampler: for evaluation, a range in its order."""
    sampler = SequentialSampler(chunk_size=16, preload_nchunks=4, batch_size=32, mask=slice(100, 240))
    loader = Loader(batch_sampler=sampler, return_index=True).use_collection(grouped)
    assert [row for batch in loader for row in batch["index"].tolist()] == list(range(100, 240))
