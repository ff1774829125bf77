"""`DatasetCollection`: what is written is what came, shuffled, and nothing is lost."""

import json
import shutil
import warnings

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from rankwise.data.rows import DatasetCollection, RowSource
from rankwise.errors import ConfigError, DataError
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


def add(place, inputs, **options):
    return DatasetCollection(place).add_adatas(
        inputs, **{"rng": 0, "dataset_size": 70, "n_obs_per_chunk": 8, "memory_budget": "1MB", **options}
    )


def read(collection):
    return [anndata.read_zarr(group) for group in collection]


def check_rows(collection, sources):
    """Every row of the sources is there once, with everything that belongs to it; return how many."""
    seen = []
    for made in read(collection):
        for row in range(made.n_obs):
            label, number = made.obs["src_path"].iloc[row], int(made.obs["src_row"].iloc[row])
            source = sources[label]
            assert made.obs["name"].iloc[row] == source.obs["name"].iloc[number]
            assert made.obs["kind"].iloc[row] == source.obs["kind"].iloc[number]
            for mine, theirs in ((made.X, source.X), (made.layers["counts"], source.layers["counts"])):
                np.testing.assert_array_equal(mine[row].toarray()[0], theirs[number].toarray()[0])
            np.testing.assert_array_equal(made.obsm["pca"][row], source.obsm["pca"][number])
            seen.append((label, number))
    assert sorted(seen) == sorted((label, row) for label, source in sources.items() for row in range(source.n_obs))
    return len(seen)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """An h5ad file, a Zarr store and an AnnData in memory; and what they hold by the label that they get."""
    folder = tmp_path_factory.mktemp("inputs")
    made = [small_anndata(count, 9, seed=seed) for seed, count in enumerate((40, 51, 33))]
    made[0].write_h5ad(folder / "a.h5ad")
    write_anndata(made[1], folder / "b.zarr")
    inputs = [str(folder / "a.h5ad"), folder / "b.zarr", made[2]]
    return inputs, dict(zip([str(folder / "a.h5ad"), str(folder / "b.zarr"), "in memory 2"], made, strict=True))


@pytest.fixture
def three(written):
    """The same, in lists and dictionaries of a test's own."""
    inputs, sources = written
    return [*inputs], {**sources}


def test_rows_of_files_stores_and_memory(tmp_path, three):
    """Every row arrives once, whatever it comes from, in datasets of equal size, with its source noted."""
    inputs, sources = three
    made = add(tmp_path / "c.zarr", inputs, dataset_size=50)
    check_rows(made, sources)
    assert [held.n_obs for held in read(made)] == [41, 41, 42]
    assert made.obs(["n"]).shape == (124, 1)
    assert made.obs([]).empty
    with pytest.raises(
        ConfigError, match=r"no obs columns \['nam'\] in .*c.zarr/dataset_0; there are \['kind', 'n', 'name'"
    ):
        made.obs(["n", "nam"])
    with pytest.raises(ConfigError, match=r"write columns=\['n'\]"):
        made.obs("n")
    assert not (tmp_path / "c.zarr.writing").exists()
    assert zarr.open_group(made.path, mode="r").attrs["encoding-type"] == "annbatch-preshuffled"


def test_the_same_seed_writes_the_same_bytes(tmp_path, three):
    """Manifests with the checksums of all arrays are equal for one seed, at any memory budget; not for another."""
    inputs, _ = three
    made = [
        add(tmp_path / f"{k}.zarr", inputs, rng=seed, memory_budget=budget).manifest
        for k, (seed, budget) in enumerate([(5, "1MB"), (5, "1GB"), (6, "1MB")])
    ]
    assert made[0] == made[1]
    assert made[0]["datasets"] != made[2]["datasets"]


def test_more_data_are_appended(tmp_path, three):
    """What is there stays as it is, byte for byte; new rows become datasets beside it, cut to its variables."""
    inputs, sources = three
    made = add(tmp_path / "c.zarr", inputs[:2])
    before = {name: entry["arrays"] for name, entry in made.manifest["datasets"].items()}
    more = small_anndata(33, 11, seed=2)
    with (
        pytest.warns(UserWarning, match="2 variables are not in the collection"),
        pytest.warns(UserWarning, match="33 new rows are shuffled among themselves"),
    ):
        add(made.path, [more])
    after = made.manifest["datasets"]
    assert {name: after[name]["arrays"] for name in before} == before
    assert sorted(after) == ["dataset_0", "dataset_1", "dataset_2"]
    sources["in memory 0"] = more[:, :9].copy()
    del sources["in memory 2"]
    check_rows(made, sources)
    assert [write["datasets"] for write in made.manifest["writes"]] == [["dataset_0", "dataset_1"], ["dataset_2"]]


def test_a_reshuffle_rewrites_all(tmp_path, three):
    """Old and new rows come into one order; the old datasets go; sources stay noted."""
    inputs, sources = three
    made = add(tmp_path / "c.zarr", inputs[:2])
    sources["in memory 0"] = sources.pop("in memory 2")
    add(made.path, [inputs[2]], reshuffle=True)
    check_rows(made, sources)
    assert sorted(path.name for path in made.path.glob("dataset_*")) == ["dataset_2", "dataset_3"]
    assert len({*read(made)[0].obs["src_path"]}) == 3


def test_missing_variables_are_zeros(tmp_path):
    """Variables are joined; a sparse row has no element where its source lacks the variable."""
    left, right = small_anndata(20, 5, seed=0), small_anndata(20, 5, seed=1)
    right.var_names = ["gene3", "gene1", "other", "gene0", "gene4"]
    [held] = read(add(tmp_path / "c.zarr", [left, right], matrices=["X"]))
    assert sorted(held.var_names) == ["gene0", "gene1", "gene2", "gene3", "gene4", "other"]
    for row in range(40):
        source = (left, right)[held.obs["src_path"].iloc[row] == "in memory 1"]
        whole = pd.Series(source.X[held.obs["src_row"].iloc[row]].toarray()[0], source.var_names)
        whole = whole.reindex(held.var_names, fill_value=0)
        np.testing.assert_array_equal(held.X[row].toarray()[0], whole)
    assert not held.layers
    assert not held.obsm


def test_dense_rows_of_any_shape(tmp_path):
    """Dense matrices and arrays of more axes are rows too."""
    made = small_anndata(30, 4)
    made.X = np.arange(120, dtype="f4").reshape(30, 4)
    made.obsm["image"] = np.arange(30 * 6, dtype="u1").reshape(30, 2, 3)
    [held] = read(add(tmp_path / "c.zarr", [made], matrices=["X", "obsm/image"]))
    rows = held.obs["src_row"].to_numpy()
    np.testing.assert_array_equal(held.X, made.X[rows])
    np.testing.assert_array_equal(held.obsm["image"], made.obsm["image"][rows])
    assert zarr.open_array(tmp_path / "c.zarr" / "dataset_0" / "obsm" / "image", mode="r").chunks == (8, 2, 3)


def test_what_is_left_out_is_said(tmp_path):
    """Matrices and columns that not all inputs have are named."""
    left, right = small_anndata(20, 5, seed=0), small_anndata(20, 5, seed=1)
    del right.layers["counts"], right.obs["kind"]
    with (
        pytest.warns(UserWarning, match="layers/counts are not in all inputs"),
        pytest.warns(UserWarning, match="obs columns 'kind' are not in all inputs"),
    ):
        [held] = read(add(tmp_path / "c.zarr", [left, right]))
    assert held.obs["kind"].isna().sum() == 20


def test_load_adata_chooses(tmp_path, three):
    """A function decides what of each path is written, in memory or lazily."""
    inputs, sources = three

    def load(path):
        whole = anndata.read_h5ad(path)
        return anndata.AnnData(X=whole.layers["counts"], obs=whole.obs[["n"]], var=whole.var)

    [held] = read(add(tmp_path / "c.zarr", inputs[:1], load_adata=load))
    assert list(held.obs) == ["n", "src_path", "src_row"]
    source = sources[inputs[0]].layers["counts"]
    np.testing.assert_array_equal(held.X.toarray(), source[held.obs["src_row"].to_numpy()].toarray())


@pytest.mark.parametrize(
    "kind",
    [
        "csr",
        "csc_array",
        pytest.param("csc", marks=pytest.mark.slow),
        pytest.param("csr_array", marks=pytest.mark.slow),
    ],
)
def test_sparse_matrices_of_any_kind(tmp_path, kind):
    """By rows or columns, matrix or array of SciPy, in memory or left on disk by `load_adata`: all rows arrive."""
    made = small_anndata(60, 9)
    whole = made.X.toarray()
    made.X = getattr(scipy.sparse, kind if "_" in kind else f"{kind}_matrix")(whole)
    made.layers.clear()
    write_anndata(made, tmp_path / "a.zarr")

    def load(place):
        group = zarr.open_group(place, mode="r")
        return anndata.AnnData(X=anndata.io.sparse_dataset(group["X"]), obs=made.obs)

    for number, (source, options) in enumerate([(made, {}), (tmp_path / "a.zarr", {"load_adata": load})]):
        [held] = read(add(tmp_path / f"{number}.zarr", [source], matrices=["X"], dataset_size=60, **options))
        np.testing.assert_array_equal(held.X.toarray(), whole[held.obs["src_row"].to_numpy()])


def test_a_column_beyond_the_budget_is_said(tmp_path):
    """Names that take more than a quarter of the budget in a dataset are named with the arithmetic and the mend."""
    made = small_anndata(9_000, 3)
    need = r"'index' needs about 69 bytes a row in memory, 0\.29\d MB for the 4500 rows of a dataset, four times that"
    with pytest.warns(UserWarning, match=need):
        add(tmp_path / "c.zarr", [made], matrices=["X"], dataset_size=4_500)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        add(tmp_path / "d.zarr", [made], matrices=["X"], dataset_size=3_000)
    assert [str(warning.message) for warning in said] == []


def test_groups_lie_together(tmp_path, three):
    """`groupby` sorts the rows of each dataset; which rows it holds stays random."""
    inputs, sources = three
    made = add(tmp_path / "c.zarr", inputs, groupby="kind")
    check_rows(made, sources)
    for held in read(made):
        assert held.obs["kind"].cat.codes.is_monotonic_increasing
        assert not held.obs["n"].is_monotonic_increasing


def test_groups_of_inputs_with_other_categories(tmp_path):
    """Categories are united where inputs have others; of several columns the first sorts rows, then the next."""
    left, right = small_anndata(30, 5, seed=0), small_anndata(30, 5, seed=1)
    left.obs["kind"] = pd.Categorical(["b", "a"] * 15, categories=["b", "a"])
    right.obs["kind"] = pd.Categorical(["c", "b", None] * 10)
    left.obs["donor"] = right.obs["donor"] = [f"d{row % 4}" for row in range(30)]
    [made] = read(add(tmp_path / "c.zarr", [left, right], groupby=["kind", "donor"], dataset_size=60))
    assert made.obs["kind"].cat.categories.tolist() == ["b", "a", "c"]
    expected = made.obs.sort_values(["kind", "donor"], kind="stable")
    assert made.obs[["kind", "donor"]].astype(str).to_numpy().tolist() == (
        expected[["kind", "donor"]].astype(str).to_numpy().tolist()
    )
    assert made.obs["kind"].isna().tolist() == [False] * 50 + [True] * 10
    more = small_anndata(20, 5, seed=2)
    more.obs["kind"] = pd.Categorical(["z"] * 20)
    more.obs["donor"] = "d9"
    with pytest.warns(UserWarning, match="20 new rows are shuffled among themselves"):
        whole = add(tmp_path / "c.zarr", [more]).obs(["kind"])["kind"]
    assert whole.cat.categories.tolist() == ["b", "a", "c", "z"]
    del right.obs["donor"]
    with (
        pytest.warns(UserWarning, match="obs columns 'donor' are not in all inputs"),
        pytest.raises(ConfigError, match="'donor' is missing in in memory 1"),
    ):
        add(tmp_path / "d.zarr", [left, right], groupby=["kind", "donor"])


def test_columns_of_different_kinds(tmp_path):
    """Columns come together: numbers that are missing somewhere, numbers that may be missing, texts and numbers."""
    left, right = small_anndata(30, 5, seed=0), small_anndata(30, 5, seed=1)
    for held, batch in ((left, 7), (right, "seven")):
        held.obs["batch"], held.obs["maybe"] = batch, pd.array([None, 1, 2] * 10, dtype="Int64")
    right.obs["maybe"] = np.arange(30)
    left.obs["count"], left.obs["known"], left.obs["note"] = 5, True, "text"
    with pytest.warns(UserWarning, match="obs columns 'count', 'known', 'note' are not in all inputs"):
        [made] = read(add(tmp_path / "c.zarr", [left, right], dataset_size=60))
    obs = made.obs.assign(left=made.obs["src_path"] == "in memory 0", row=made.obs["src_row"])
    for row in obs.itertuples():
        assert row.batch == ("7" if row.left else "seven")
        assert (pd.isna(row.maybe), row.left and row.row % 3 == 0) in {(True, True), (False, False)}
        assert row.left or row.maybe == row.row
        assert [pd.isna(value) for value in (row.count, row.known, row.note)] == [not row.left] * 3
    assert {name: str(obs[name].dtype) for name in ("maybe", "count", "known")} == {
        "maybe": "Int64",
        "count": "float64",
        "known": "boolean",
    }
    left.obs["when"] = pd.Timestamp("2020-01-01")
    with pytest.raises(DataError, match="obs column 'when' of in memory 0 holds datetime64"):
        add(tmp_path / "d.zarr", [left])


def test_without_a_shuffle_rows_keep_their_order(tmp_path, three):
    """`shuffle=False` puts the inputs one behind the other."""
    inputs, sources = three
    made = add(tmp_path / "c.zarr", inputs, shuffle=False)
    whole = pd.concat([source.obs for source in sources.values()])
    assert made.obs()["name"].tolist() == whole["name"].tolist()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset_size": "lots"}, "dataset_size must be an integer .* a size such as"),
        ({"memory_budget": "1KB"}, "memory_budget must be at least"),
        ({"shuffle_chunk_size": 0}, r"shuffle_chunk_size \(rows\) must be"),
        ({"shuffle_chunk_size": 80}, "do not fit into datasets of 70 rows"),
        ({"groupby": "colour"}, "groupby needs columns of obs; no input has 'colour'"),
        ({"matrices": ["layers/raw"]}, "has no 'layers/raw'"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, options, said):
    """Arguments that make no sense are named, and nothing is written."""
    with pytest.raises(ConfigError, match=said):
        add(tmp_path / "c.zarr", [small_anndata()], **options)
    assert not list((tmp_path / "c.zarr").glob("dataset_*"))


@pytest.mark.parametrize("ending", [".vcf", ".vcf.gz", ".BCF"])
def test_genotypes_as_text_are_named(tmp_path, ending):
    """VCF is not supported, and said by name with what to do; `load_adata=` may still read it."""
    (tmp_path / f"a{ending}").write_bytes(b"##fileformat=VCFv4.2")
    collection = DatasetCollection(tmp_path / "c.zarr")
    with pytest.raises(DataError, match=r"is VCF, which is not supported: .* load_adata="):
        collection.add_adatas([tmp_path / f"a{ending}"])
    collection.add_adatas([tmp_path / f"a{ending}"], load_adata=lambda _: small_anndata(20, 5))
    assert len(collection.obs()) == 20


def test_modes(tmp_path):
    """Reading never writes, h5ad collections and folders that are not there are refused."""
    with pytest.raises(DataError, match="there is no collection at"):
        DatasetCollection(tmp_path / "c.zarr", mode="r")
    with pytest.raises(ConfigError, match="h5ad files are not supported"):
        DatasetCollection(tmp_path / "c", is_collection_h5ad=True)
    with pytest.warns(UserWarning, match=r"end in \.zarr"):
        DatasetCollection(tmp_path / "c")
    assert DatasetCollection(tmp_path / "c.zarr").is_empty
    with pytest.raises(ConfigError, match="opened read-only"):
        DatasetCollection(tmp_path / "c.zarr", mode="r").add_adatas([small_anndata()])
    with pytest.raises(DataError, match="nothing found at"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([tmp_path / "none.h5ad"])


def test_folders_that_nobody_listed_are_no_members(tmp_path):
    """A folder that a killed writing left is neither iterated nor found, by us or by others."""
    made = add(tmp_path / "c.zarr", [small_anndata(20)])
    shutil.copytree(made.path / "dataset_0", made.path / "dataset_1")
    assert [group.path or group.store.root.name for group in made] == ["dataset_0"]
    assert len(RowSource(made.path)) == 20
    assert list(zarr.open_group(made.path, mode="r").keys()) == ["dataset_0"]
    assert json.loads((made.path / "zarr.json").read_bytes())["attributes"]["rankwise"]["version"] == 1
