"""What is added to a collection fits what is there, or somebody is told."""

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from rankwise.data.rows import DatasetCollection, Loader, RowSource, verify_rows
from rankwise.errors import ConfigError, DataError
from rankwise.testing.stores.small_rows import small_anndata

NEW_ROWS = "new rows are shuffled among themselves"


@pytest.fixture
def collection(tmp_path):
    return DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40, 6)], rng=0)


def few(seed=1):
    return small_anndata(3, 6, seed=seed)


def test_rows_that_no_loader_could_read_are_refused(collection):
    """A matrix of another kind or width, and variables of other names: refused, nothing changes."""
    sparse, wide, renamed = few(), few(), few()
    sparse.obsm["pca"] = scipy.sparse.csr_matrix(sparse.obsm["pca"])
    wide.obsm["pca"] = np.zeros((3, 5), "f4")
    renamed.var_names = [f"ENSG{number}" for number in range(6)]
    for made, words in (
        (sparse, r"obsm/pca of in memory 0 is sparse \[3, 3\], in the collection .*c.zarr it is dense .*load_adata="),
        (wide, r"obsm/pca of in memory 0 is dense \[3, 5\], .* dense \[40, 3\]"),
        (renamed, r"none of the variables of the collection .*: it has ENSG0, .* the collection has gene0, gene1"),
    ):
        with pytest.raises(ConfigError, match=words):
            collection.add_adatas([made])
    assert list(collection.manifest["datasets"]) == ["dataset_0"]
    assert len(RowSource(collection)) == 40


@pytest.mark.filterwarnings(f"ignore:.*{NEW_ROWS}")
def test_dense_rows_beside_sparse_ones(tmp_path):
    """They become CSR, in one call as when they are added later, which is said; every row is what it was."""
    inputs = [small_anndata(20, 6, seed=seed) for seed in range(4)]
    for made in inputs[1:]:
        made.X = made.X.toarray()
    inputs[1].write_h5ad(tmp_path / "dense.h5ad")
    collection = DatasetCollection(tmp_path / "c.zarr")
    for parts in ([inputs[0], tmp_path / "dense.h5ad"], inputs[2:]):
        with pytest.warns(UserWarning, match=r"X of .* is dense and becomes CSR"):
            collection.add_adatas(parts, rng=0)
    rows = {name: row for made in inputs for name, row in zip(made.obs["name"], made.X, strict=True)}
    held = collection.obs(["name"])["name"]
    loader = Loader(batch_size=80, chunk_size=40, preload_nchunks=2, shuffle=True, return_index=True)
    [batch] = loader.use_collection(collection)
    wanted = [rows[name] for name in held.iloc[batch["index"]]]
    wanted = [row.toarray()[0] if scipy.sparse.issparse(row) else row for row in wanted]
    np.testing.assert_array_equal(batch["X"].toarray(), wanted)
    assert len(wanted) == 80
    problems = verify_rows(collection.path, sources=True)
    assert [problem for problem in problems if "dense.h5ad" in problem] == []


def test_what_only_some_rows_will_have_is_said(collection):
    """Matrices and columns of observations that old or new rows lack are named when they are added."""
    made = few()
    del made.layers["counts"], made.obs["kind"]
    made.obs["age"] = 3
    with (
        pytest.warns(UserWarning, match="matrices differ from those of .*c.zarr: new rows lack layers/counts"),
        pytest.warns(UserWarning, match="columns of obs differ .*: new rows lack kind; only new rows have age"),
    ):
        collection.add_adatas([made])
    assert len(RowSource(collection, matrices=("X", "obsm/pca"), obs=("n",))) == 43


def test_files_that_come_twice_are_said(tmp_path):
    """A call that was finished, made again, adds its rows again, and says so; of memory nobody can know."""
    place = tmp_path / "a.h5ad"
    small_anndata(40, 6).write_h5ad(place)
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas(place, rng=0)  # a single input will do
    with pytest.warns(UserWarning, match=NEW_ROWS), pytest.warns(UserWarning, match="already has rows of .*a.h5ad"):
        collection.add_adatas([place], rng=0)
    collection.add_adatas([few()])
    collection.add_adatas([few()])
    assert len(collection.obs(["n"])) == 86


def test_equal_variables_with_names_that_come_twice(tmp_path):
    """Genes that share a symbol stay as they are where all inputs have the same; else the input is named."""
    left, right, other = few(0), few(1), few(2)
    left.var_names = right.var_names = ["a", "b", "b", "c", "d", "e"]
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([left, right], rng=0)
    assert RowSource(collection).var_names == ("a", "b", "b", "c", "d", "e")
    [group], obs = collection, collection.obs(["name"])
    rows = {name: row for made in (left, right) for name, row in zip(made.obs["name"], made.X.toarray(), strict=True)}
    written = anndata.io.sparse_dataset(group["X"])[:].toarray()
    np.testing.assert_array_equal(written, [rows[name] for name in obs["name"]])
    with pytest.warns(UserWarning, match=NEW_ROWS):
        collection.add_adatas([left])
    with pytest.raises(ConfigError, match=r"duplicate variable names, such as b, .* load_adata="):
        DatasetCollection(tmp_path / "d.zarr").add_adatas([other, right])


def test_names_of_variables_that_meet_nothing(tmp_path):
    """Inputs without a variable in common, and chosen ones that are not there, are said; none at all is refused."""
    left, right = few(0), few(1)
    right.var_names = [f"ENSG{number}" for number in range(6)]
    with pytest.warns(UserWarning, match="in memory 1 has no variable in common with in memory 0"):
        both = DatasetCollection(tmp_path / "a.zarr").add_adatas([left, right])
    assert RowSource(both).fields["X"].shape == (12,)
    with pytest.warns(UserWarning, match="var_subset= has 1 names that no input has: GENE1"):
        some = DatasetCollection(tmp_path / "b.zarr").add_adatas([left], var_subset=["gene2", "GENE1"])
    assert RowSource(some).var_names == ("gene2",)
    with pytest.raises(ConfigError, match="none of them in any input: it has GENE1, the inputs gene0, gene1"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([left], var_subset=["GENE1"])


@pytest.mark.parametrize("in_memory", [False, True])
def test_columns_of_all_kinds_arrive_as_they_were(tmp_path, in_memory):
    """Numbers, truth values and texts that may be missing, ordered categories and odd names: equal after a writing."""
    made = small_anndata(40, 6)
    made.obs = pd.DataFrame(
        {
            "levels": pd.Categorical(["lo", None, "hi", "lo"] * 10, categories=["lo", "hi"], ordered=True),
            "numbered": pd.Categorical(np.arange(40) % 4),
            "maybe_int": pd.array([None, 1, 2, 3] * 10, dtype="Int64"),
            "maybe_true": pd.array([None, True, False, True] * 10, dtype="boolean"),
            "maybe_large": pd.array([None, 2**64 - 1, 2, 3] * 10, dtype="UInt64"),
            "some_nan": np.where(np.arange(40) % 3, np.nan, 1.5),
            "all_nan": np.full(40, np.nan),
            "two words": np.arange(40, dtype="i1"),
            "größe": np.arange(40, dtype="f4"),
        },
        index=made.obs.index,
    )
    made.write_h5ad(tmp_path / "a.h5ad")
    source = made if in_memory else tmp_path / "a.h5ad"
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([source], rng=0)
    found = collection.obs()
    expected = made.obs.iloc[found["src_row"]]
    pd.testing.assert_frame_equal(found[list(made.obs)], expected, check_names=False)
    loader = Loader(batch_size=8, chunk_size=4, preload_nchunks=4, shuffle=True, rng=0, return_index=True)
    for batch in loader.use_collection(collection):
        pd.testing.assert_frame_equal(batch["obs"], found.iloc[batch["index"]], check_names=False)


@pytest.mark.parametrize("nullable", ["Int64", "boolean"])
def test_nullable_columns_beside_fractions(tmp_path, nullable):
    """Whole numbers or truth values that may be missing become fractions beside such, and what is missing NaN."""
    left, right = few(0), few(1)
    left.obs["score"] = pd.array([1, None, 0] * (left.n_obs // 3), dtype=nullable)
    right.obs["score"] = np.arange(right.n_obs) / 4
    found = DatasetCollection(tmp_path / "c.zarr").add_adatas([left, right], shuffle=False).obs(["score"])["score"]
    expected = [*[1.0, np.nan, 0.0] * (left.n_obs // 3), *(np.arange(right.n_obs) / 4)]
    np.testing.assert_array_equal(found.to_numpy(), expected)


def test_matrices_without_rows_or_columns(tmp_path):
    """An input without rows adds none, one row is a collection, and so are rows without variables."""
    empty, alone, narrow = small_anndata(40, 6)[:0].copy(), small_anndata(1, 6), few()
    with pytest.raises(ConfigError, match="inputs with rows, got none"):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([empty])
    assert len(DatasetCollection(tmp_path / "b.zarr").add_adatas([empty, alone]).obs()) == 1
    narrow = anndata.AnnData(scipy.sparse.csr_matrix((3, 0), dtype="f4"), obs=narrow.obs)
    assert RowSource(DatasetCollection(tmp_path / "c.zarr").add_adatas([narrow])).fields["X"].shape == (0,)


def test_names_with_a_slash_are_refused(tmp_path):
    """Zarr takes them for folders; the input and the columns are named, and what to do."""
    made = few()
    made.obs["CD4+/CD25"] = 1.0
    with pytest.raises(ConfigError, match=r"obs of in memory 0 has columns with a slash .* 'CD4\+/CD25'; rename them"):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([made])
    del made.obs["CD4+/CD25"]
    made.var["a/b"] = 1.0
    with pytest.raises(ConfigError, match="var of in memory 0 has columns with a slash"):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([made])


@pytest.mark.parametrize("values", [["a", "b", "\ud800c"], pd.Categorical(["a", "b", "\ud800c"])])
def test_a_text_that_no_store_holds(tmp_path, values):
    """Half of a surrogate pair, from a wrong decoding, has no form in UTF-8: the column is named before anything."""
    made = anndata.AnnData(np.ones((3, 2), "f4"), obs=pd.DataFrame({"c": values}, index=list("xyz")))
    with pytest.raises(DataError, match=r"obs column 'c'.*the text '\\ud800c' has no form in UTF-8"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([made])


def test_a_column_that_would_be_replaced(tmp_path):
    """`src_row` is the number of the row in its source: one of the user's own is not lost without a word."""
    made = anndata.AnnData(np.ones((3, 2), "f4"), obs=pd.DataFrame({"src_row": [7, 8, 9]}, index=list("xyz")))
    with pytest.warns(UserWarning, match="obs column 'src_row' of in memory 0 is replaced") as found:
        DatasetCollection(tmp_path / "c.zarr").add_adatas([made])
    assert [one.filename for one in found] == [__file__]


@pytest.mark.parametrize("name", ["_index", "", "..", "\ud800x"])
def test_names_that_no_store_holds(tmp_path, name):
    """`_index` would replace the names of the rows; the others fail deep inside of Zarr."""
    made = few()
    made.obs[name] = 1.0
    with pytest.raises(ConfigError, match=r"obs of in memory 0 has columns with names that Zarr or AnnData reserves"):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([made])
    made = few()
    made.layers[name or "a/b"] = made.X.copy()
    with pytest.raises(ConfigError, match=r"layers of in memory 0 has matrices with (names that|a slash)"):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([made])


def test_two_columns_of_one_name(tmp_path):
    """AnnData allows them, no store does."""
    made = few()
    made.obs = pd.concat([made.obs, made.obs], axis=1)
    with pytest.raises(DataError, match="obs of in memory 0 has several columns named"):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([made])


def test_what_has_no_type_in_a_store(tmp_path):
    """It is named before any row is moved."""
    made = few()
    made.obs["flag"] = pd.arrays.SparseArray([0, 1, 0][: len(made)])
    with pytest.raises(
        DataError, match=r"obs column 'flag' of in memory 0 holds Sparse\[int64, 0\], which AnnData can"
    ):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([made])
    del made.obs["flag"]
    made.var["when"] = pd.to_datetime("2020-01-01")
    with pytest.raises(DataError, match=r"column 'when' of the variables holds datetime64.*drop it, with load_adata="):
        DatasetCollection(tmp_path / "b.zarr").add_adatas([made])
    wide = anndata.AnnData(np.ones((3, 2), np.longdouble))
    if wide.X.dtype.itemsize > 8:
        with pytest.raises(DataError, match=r"X of in memory 0 holds float128, for which Zarr has no type"):
            DatasetCollection(tmp_path / "b.zarr").add_adatas([wide])
