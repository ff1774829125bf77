"""Several modalities of MuData in one collection."""

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from rankwise import Order
from rankwise.data.rows import DatasetCollection, OrderedLoader, RowSource, verify_rows
from rankwise.errors import ConfigError
from rankwise.testing.stores.small_rows import small_anndata

MODALITIES = ["rna", "protein"]


def two_modalities(number):
    """RNA of 60 cells, and proteins of 50 of them and 5 others, in another order."""
    rna, protein = small_anndata(60, 9, seed=number), small_anndata(55, 5, seed=10 + number)
    names = [f"{number}/{cell}" for cell in range(65)]
    rna.obs_names = names[:60]
    protein.obs_names = np.random.default_rng(number).permutation(names[10:])
    protein.var_names = [f"CD{4 + k}" for k in range(5)]
    protein.X = protein.X.tocsc() if number else protein.X.toarray()
    if number:
        protein.X = protein.X.toarray()
        protein.layers["counts"] = protein.layers["counts"].tocsc()
    return {"rna": rna, "protein": protein}


def write_mudata(group, mods):
    """MuData as its library stores it: the modalities, a table of all cells, and where each is in each of them."""
    names = pd.Index(sorted({name for held in mods.values() for name in held.obs_names}))
    group.attrs.update({"encoding-type": "MuData", "encoding-version": "0.1.0", "axis": 0})
    write = anndata.io.write_elem
    write(group, "obs", pd.DataFrame({"donor": [f"d{name[-1]}" for name in names], "rna:n": 1}, index=names))
    write(group, "var", pd.DataFrame(index=[name for held in mods.values() for name in held.var_names]))
    group.create_group("mod").attrs["mod-order"] = list(mods)
    for name, held in mods.items():
        write(group, f"mod/{name}", held)
        write(group, f"obsmap/{name}", held.obs_names.get_indexer(names).astype("i8") + 1)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multi")
    made = {str(folder / "a.h5mu"): two_modalities(0), str(folder / "b.zarr"): two_modalities(1)}
    with h5py.File(folder / "a.h5mu", "w") as file:
        write_mudata(file, made[str(folder / "a.h5mu")])
    with anndata.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        write_mudata(zarr.open_group(folder / "b.zarr", mode="w", zarr_format=3), made[str(folder / "b.zarr")])
    return made


@pytest.fixture(scope="module")
def collection(sources, tmp_path_factory):
    with pytest.warns(UserWarning, match="50 observations are in all of its modalities"):
        return DatasetCollection(tmp_path_factory.mktemp("made") / "c.zarr").add_adatas(
            list(sources), modalities=MODALITIES, rng=0, dataset_size=60, n_obs_per_chunk=8
        )


def test_a_dataset_holds_all_modalities(sources, collection):
    """Each row is one cell in every modality: anndata reads the first as the dataset, the others inside it."""
    seen = []
    for group in collection:
        made = anndata.read_zarr(group)
        protein = made.uns["mod"]["protein"]
        assert protein.var_names.tolist() == [f"CD{4 + k}" for k in range(5)]
        assert protein.obs_names.tolist() == made.obs_names.tolist()
        for row, name in enumerate(made.obs_names):
            source = sources[made.obs["src_path"].iloc[row]]
            rna, other = source["rna"][name], source["protein"][name]
            np.testing.assert_array_equal(made.X[row].toarray(), rna.X.toarray())
            np.testing.assert_array_equal(made.layers["counts"][row].toarray(), rna.layers["counts"].toarray())
            np.testing.assert_array_equal(protein.X[row], other.X[0])
            np.testing.assert_array_equal(protein.layers["counts"][row].toarray(), other.layers["counts"].toarray())
            np.testing.assert_array_equal(protein.obsm["pca"][row], other.obsm["pca"][0])
            assert made.obs["n"].iloc[row] == rna.obs["n"].iloc[0]
            assert made.obs["protein:n"].iloc[row] == other.obs["n"].iloc[0]
            assert made.obs["donor"].iloc[row] == f"d{name[-1]}"
            seen.append(name)
    assert sorted(seen) == sorted(f"{number}/{cell}" for number in (0, 1) for cell in range(10, 60))


def test_batches_have_matrices_of_several_modalities(sources, collection):
    """A source of rows takes them by name, and their rows are those of one cell."""
    matrices = ["X", "mod/protein/X", "mod/protein/layers/counts"]
    source = RowSource(str(collection.path), matrices=matrices, obs=["n", "protein:n"], dense=True)
    by_n = {int(row["rna"].obs["n"].iloc[k]): (row, k) for row in sources.values() for k in range(60)}
    count = 0
    with OrderedLoader(source, order=Order(source, batch_size=16, seed=0), device="cpu") as loader:
        for (batch,) in loader:
            for at, n in enumerate(batch["n"].tolist()):
                mods, row = by_n[n]
                other = mods["protein"][mods["rna"].obs_names[row]]
                np.testing.assert_array_equal(batch["X"][at].numpy(), mods["rna"].X[row].toarray()[0])
                np.testing.assert_array_equal(batch["mod/protein/X"][at].numpy(), other.X[0])
                assert int(batch["protein:n"][at]) == int(other.obs["n"].iloc[0])
                count += 1
    assert count == 100


def test_sources_are_compared_by_modality(collection):
    """Checking against the sources finds the rows of every modality again."""
    seen = []
    assert verify_rows(collection.path, sources=True, shown=seen.append) == []
    assert {"X", "mod/protein/X", "mod/protein/layers/counts", "protein:n", "donor"} <= set(seen)


def test_a_rewrite_keeps_all_modalities(collection, tmp_path):
    """Rows of a collection with several modalities are mixed anew, all of their matrices with them."""
    other = tmp_path / "c.zarr"
    with pytest.warns(UserWarning, match="50 observations are in all"):
        DatasetCollection(other).add_adatas(
            list(collection.obs(["src_path"])["src_path"].cat.categories),
            modalities=MODALITIES,
            rng=0,
            matrices=["X", "mod/protein/X"],
        )
    before = anndata.read_zarr(other / "dataset_0")
    DatasetCollection(other).add_adatas([], reshuffle=True, rng=5)
    after = anndata.read_zarr(other / "dataset_1")
    assert after.obs_names.tolist() != before.obs_names.tolist()
    back = pd.Index(after.obs_names).get_indexer(before.obs_names)
    np.testing.assert_array_equal(after.uns["mod"]["protein"].X[back], before.uns["mod"]["protein"].X)
    np.testing.assert_array_equal(after.X[back].toarray(), before.X.toarray())


def test_what_is_there_is_named(sources, collection, tmp_path):
    """MuData wants modalities to be chosen, AnnData has none; matrices of all modalities are listed."""
    first, second = sources
    with pytest.raises(ConfigError, match="is a MuData: choose from protein, rna"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([first])
    with pytest.raises(ConfigError, match="has no 'atac': choose from protein, rna"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([second], modalities=["rna", "atac"])
    with pytest.raises(ConfigError, match="is an AnnData without modalities"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata()], modalities=["rna"])
    for name in ("X", "layers/counts", "obsm/pca", "mod/protein/X", "mod/protein/obsm/pca"):
        assert list(RowSource(collection, matrices=[name])[0]) == [name]
