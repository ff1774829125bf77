"""Rows of a collection beside the files that they come from."""

import shutil

import anndata
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from rankwise.data.rows import DatasetCollection, verify_rows
from rankwise.data.rows.collection.journal import commit, read_manifest
from rankwise.data.rows.datasets.on_disk import array_checksums
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Rows by rows and by columns, with other variables, a number that is text elsewhere, and one that is missing."""
    folder = tmp_path_factory.mktemp("sources")
    left, right = small_anndata(50, 12, seed=0), small_anndata(40, 12, seed=1)
    right = right[:, ::-1][:, :10].copy()
    right.X = right.X.tocsc()
    right.obs["kind"] = right.obs["kind"].astype(str)
    left.obs["batch"], right.obs["batch"] = 3, "x"
    left.obs["score"] = 1.5
    left.obs["X"] = right.obs["X"] = 2
    left.write_h5ad(folder / "left.h5ad")
    write_anndata(right, folder / "right.zarr")
    collection = DatasetCollection(folder / "c.zarr")
    with pytest.warns(UserWarning, match="obs columns 'score' are not in all inputs"):
        collection.add_adatas([folder / "left.h5ad", folder / "right.zarr"], rng=0, dataset_size=60, n_obs_per_chunk=8)
    return collection.path


def test_rows_are_those_of_their_sources(whole):
    """Every matrix and column of every row is compared, whatever dtype and layout its source has."""
    seen = []
    assert verify_rows(whole, sources=True, shown=seen.append) == []
    assert {"X", "layers/counts", "obsm/pca", "kind", "n", "name", "batch", "score"} <= set(seen)


@pytest.mark.parametrize("name", ["X/data", "obsm/pca", "obs/n", "obs/kind/codes", "obs/X"])
def test_what_differs_is_named(whole, tmp_path, name):
    """A value that was changed, its checksum along with it, is found by the row and its source."""
    place = shutil.copytree(whole, tmp_path / "c.zarr")
    array = zarr.open_array(place / "dataset_0" / name, mode="r+")
    values = array[:]
    values.flat[5] = (values.flat[5] + 1) % 3 + 0
    array[:] = values
    manifest = read_manifest(place)
    manifest["datasets"]["dataset_0"]["arrays"] = array_checksums(place / "dataset_0")
    commit(place, manifest)
    assert verify_rows(place) == []
    [problem] = verify_rows(place, sources=True)
    assert problem.startswith(f"{name.removeprefix('obs/').partition('/data')[0].partition('/codes')[0]} of 1 rows of ")
    number = int(problem.rpartition("such as row ")[2].partition(",")[0])
    made = anndata.read_zarr(place / "dataset_0")
    assert f"should be row {made.obs['src_row'].iloc[number]} there" in problem


def test_sources_that_changed(whole, tmp_path):
    """A source that was changed later is found out; one that is gone, or was in memory, is named."""
    left, right = small_anndata(20, 6, seed=0), small_anndata(20, 6, seed=1)
    left.write_h5ad(tmp_path / "left.h5ad")
    right.write_h5ad(tmp_path / "right.h5ad")
    collection = DatasetCollection(tmp_path / "c.zarr")
    collection.add_adatas([tmp_path / "left.h5ad", tmp_path / "right.h5ad", small_anndata(20, 6, seed=2)], rng=0)
    assert verify_rows(collection.path, sources=True) == ["in memory 2 was in memory: its rows cannot be compared"]
    with h5py.File(tmp_path / "left.h5ad", "r+") as file:
        file["layers/counts/data"][:] = file["layers/counts/data"][:] + 1
    (tmp_path / "right.h5ad").unlink()
    gone, memory, changed = verify_rows(collection.path, sources=True)
    assert memory.startswith("in memory 2")
    assert gone.startswith(f"{tmp_path}/right.h5ad cannot be compared: nothing found at")
    stored = int((np.diff(left.layers["counts"].indptr) > 0).sum())
    assert changed.startswith(f"layers/counts of {stored} rows of {collection.path}/dataset_0 differs from")


@pytest.mark.filterwarnings("ignore:(matrices|columns of obs) differ from those", "ignore:.*new rows are shuffled")
def test_additions_that_lack_something(tmp_path):
    """A later addition without a layer, or a column, of the first is compared in what it has, and so is the first."""
    left, right = small_anndata(20, 6, seed=0), small_anndata(15, 6, seed=1)
    del right.layers["counts"], right.obs["kind"]
    right.obs["late"] = 7
    collection = DatasetCollection(tmp_path / "c.zarr")
    for name, made in (("left", left), ("right", right)):
        made.write_h5ad(tmp_path / f"{name}.h5ad")
        collection.add_adatas([tmp_path / f"{name}.h5ad"], rng=0)
    seen = []
    assert verify_rows(collection.path, sources=True, shown=seen.append) == []
    assert {"X", "layers/counts", "kind", "late"} <= set(seen)
    for name, where, words in (
        ("left", "layers/counts/data", "layers/counts of 1 rows of "),
        ("right", "obs/late", "late of 1 rows of "),
    ):
        with h5py.File(tmp_path / f"{name}.h5ad", "r+") as file:
            file[where][3] += 1
        [problem] = verify_rows(collection.path, sources=True)
        assert problem.startswith(words)
        with h5py.File(tmp_path / f"{name}.h5ad", "r+") as file:
            file[where][3] -= 1


def test_an_origin_of_the_users_own(tmp_path):
    """A column `src_path` of texts, which an input had already, names sources that are not there."""
    left = small_anndata(20, 6, seed=0)
    left.obs["src_path"] = [f"lab{row % 2}" for row in range(20)]
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([left], rng=0)
    for place, problem in zip(("lab0", "lab1"), verify_rows(collection.path, sources=True), strict=True):
        assert problem.startswith(f"{place} cannot be compared: nothing found at {place}")


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_dense_sources_of_csr_rows(tmp_path, dtype):
    """A dense source without some of the variables is compared as CSR, which it became: what it lacks is no element."""
    wide = anndata.AnnData(sp.csr_matrix(np.arange(12).reshape(3, 4).astype(dtype)))
    narrow = anndata.AnnData(np.arange(6).reshape(3, 2).astype(dtype))
    for name, made in (("wide", wide), ("narrow", narrow)):
        made.write_h5ad(tmp_path / f"{name}.h5ad")
    with pytest.warns(UserWarning, match="is dense and becomes CSR"):
        collection = DatasetCollection(tmp_path / "c.zarr").add_adatas(
            [tmp_path / "wide.h5ad", tmp_path / "narrow.h5ad"]
        )
    assert verify_rows(collection.path, sources=True) == []
    with h5py.File(tmp_path / "narrow.h5ad", "r+") as file:
        file["X"][1, 1] = 9
    [problem] = verify_rows(collection.path, sources=True)
    assert problem.startswith("X of 1 rows of ")


def test_numbers_beside_complex_ones(tmp_path):
    """Real numbers that became complex in the collection are equal to those of their source."""
    left, right = (anndata.AnnData(np.arange(20.0).reshape(5, 4)) for _ in range(2))
    right.X = right.X * 1j
    left.write_h5ad(tmp_path / "left.h5ad")
    right.write_h5ad(tmp_path / "right.h5ad")
    with pytest.warns(UserWarning, match="X is float64 in .* and complex128 in .*: written as complex128"):
        made = DatasetCollection(tmp_path / "c.zarr").add_adatas([tmp_path / "left.h5ad", tmp_path / "right.h5ad"])
    assert verify_rows(made.path, sources=True) == []
