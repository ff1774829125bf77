"""What a writing would lose, fill or change of its inputs is refused, or said."""

import logging
import shutil

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from rankwise import Order
from rankwise.data.rows import DatasetCollection, Loader, OrderedLoader, RowSource
from rankwise.errors import ConfigError, DataError
from rankwise.testing.stores.small_rows import random_csr, small_anndata, write_anndata

NEW_ROWS = "ignore:.*new rows are shuffled among themselves"


def without_counts(num_rows=5):
    made = small_anndata(num_rows, 6, seed=1)
    del made.layers["counts"]
    return made


def genes(names, seed=0):
    """Rows of X alone, with these variables."""
    var = pd.DataFrame(index=list(names))
    obs = pd.DataFrame({"n": np.arange(8)}, index=[f"{seed}-{row}" for row in range(8)])
    return anndata.AnnData(random_csr(8, len(var), seed=seed, density=0.6), obs=obs, var=var)


@pytest.mark.filterwarnings("ignore:matrices differ from those")
def test_a_reshuffle_deletes_no_matrix_unasked(tmp_path):
    """New rows without a matrix of the collection: refused, nothing changes; matrices= says that it may go."""
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(20, 6)], rng=0)
    words = r"would delete layers/counts from it, .*: in memory 0 lacks it\. .*matrices=\['X', 'obsm/pca'\]"
    with pytest.raises(ConfigError, match=words):
        collection.add_adatas([without_counts()], reshuffle=True, rng=0)
    assert list(collection.manifest["datasets"]) == ["dataset_0"]
    assert RowSource(collection, matrices=["layers/counts"]).num_samples == 20
    collection.add_adatas([without_counts()], reshuffle=True, rng=0, matrices=["X"])
    assert RowSource(collection).num_samples == 25
    assert RowSource(collection).datasets[0].matrices == ("X",)


@pytest.mark.filterwarnings("ignore:obs columns 'donor' are not in all inputs")
def test_integers_that_become_floats(tmp_path, caplog):
    """A column of integers that another input lacks is written as floats; if they round its numbers it is said."""
    left, right = small_anndata(5, 6), small_anndata(4, 6, seed=1)
    left.obs["donor"] = 2**53 + np.arange(5)
    made = DatasetCollection(tmp_path / "c.zarr").add_adatas([left, right], rng=0)
    assert made.obs(["donor"])["donor"].dtype == np.float64
    [said] = [text for text in caplog.messages if "'donor'" in text]
    assert "'donor' of in memory 0 holds int64 and becomes float64: integers beyond" in said


@pytest.mark.filterwarnings("ignore:.*is dense and becomes CSR", NEW_ROWS)
def test_half_precision(tmp_path):
    """SciPy has no CSR of float16: such rows are refused with the mend, and dense ones beside CSR become float32."""
    half = small_anndata(5, 6)
    half.X = half.X.astype("f4")
    half.X.data = half.X.data.astype("f2")
    with pytest.raises(
        DataError, match=r"X of in memory 0 holds float16, of which SciPy has no .* float32.*load_adata="
    ):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([half], rng=0)
    dense = small_anndata(5, 6)
    dense.X = dense.X.toarray().astype("f2")
    made = DatasetCollection(tmp_path / "b.zarr").add_adatas([small_anndata(4, 6, seed=1)], rng=0, shuffle=False)
    made.add_adatas([dense], rng=0, shuffle=False)
    kept = anndata.io.read_elem(list(made)[1]["X"])
    assert kept.dtype == np.float32
    assert np.array_equal(kept.toarray(), dense.X)


def test_an_input_counts_once_in_a_call(tmp_path, monkeypatch):
    """A file by two names, a store and its group, one object twice: refused before anything is written."""
    monkeypatch.chdir(tmp_path)
    made = small_anndata(9, 6)
    made.write_h5ad("a.h5ad")
    write_anndata(made, "a.zarr")
    group = zarr.open_group("a.zarr", mode="r")
    collection = DatasetCollection("c.zarr")
    for inputs in (["a.h5ad", "./a.h5ad"], ["a.zarr", group], [made, made], [tmp_path / "a.zarr", "a.zarr"]):
        with pytest.raises(ConfigError, match=r"is among the inputs twice.*: its rows would occur twice"):
            collection.add_adatas(inputs, rng=0)
    assert collection.is_empty
    collection.add_adatas(["a.h5ad", "a.zarr", made, made.copy()], rng=0)
    assert len(collection.obs(["n"])) == 36


@pytest.mark.filterwarnings(NEW_ROWS)
def test_inputs_of_several_dtypes_are_said(tmp_path, caplog):
    """In one call: what they are, what is written, what rounds. In several: what the rows come out as, once."""
    whole = small_anndata(12, 6, seed=1)
    whole.X = whole.X.astype("i8")
    with pytest.warns(
        UserWarning, match=r"X is float32 in in memory 0 and int64 in in memory 1: written as float64, wh"
    ):
        DatasetCollection(tmp_path / "a.zarr").add_adatas([small_anndata(9, 6), whole], rng=0)
    collection = DatasetCollection(tmp_path / "b.zarr")
    for made in (small_anndata(9, 6), whole):
        collection.add_adatas([made], rng=0)
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        for _ in range(2):
            assert RowSource(collection).fields["X"].dtype == np.float64
        assert RowSource(collection, dtype="f4").fields["X"].dtype == np.float32
    [text] = [record.getMessage() for record in caplog.records if "its rows are read as float64" in record.getMessage()]
    assert "X is float32 in " in text
    assert "dataset_0/X and int64 in " in text


def test_variables_that_only_some_inputs_have(tmp_path, caplog):
    """How many are shared and what is filled is said; join="inner" takes the shared ones."""
    inputs = [genes("abcd"), genes("cdefgh", seed=1)]
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        outer = DatasetCollection(tmp_path / "outer.zarr").add_adatas(inputs, rng=0)
        inner = DatasetCollection(tmp_path / "inner.zarr").add_adatas(inputs, rng=0, join="inner")
    outer_said, inner_said = (record.getMessage() for record in caplog.records)
    assert outer_said.startswith("2 of 8 variables are in all inputs; rows of 2 of them are filled")
    assert "most of all those of in memory 0, which lacks 4; join='inner'" in outer_said
    assert inner_said == "2 of 2 variables are in all inputs; up to 4 others of an input are dropped"
    assert RowSource(outer).var_names == tuple("abcdefgh")
    assert RowSource(inner).var_names == ("c", "d")
    wanted = {(0, row): inputs[0].X[row, 2:].toarray().tolist() for row in range(8)}
    wanted |= {(1, row): inputs[1].X[row, :2].toarray().tolist() for row in range(8)}
    obs = inner.obs(["src_path", "src_row"])
    loader = Loader(inner, batch_size=16, chunk_size=8, preload_nchunks=2, shuffle=False)
    [batch] = loader
    for row, (path, number) in enumerate(zip(obs["src_path"], obs["src_row"], strict=True)):
        assert batch["X"][row].toarray().tolist() == wanted[int(path[-1]), number]
    with pytest.raises(ConfigError, match="no variable is in all inputs"):
        DatasetCollection(tmp_path / "n.zarr").add_adatas([genes("ab"), genes("cd", seed=1)], join="inner")
    with pytest.raises(ConfigError, match="join must be 'outer' or 'inner', got 'left'"):
        DatasetCollection(tmp_path / "n.zarr").add_adatas([genes("ab")], join="left")


def test_thousands_of_small_datasets_are_refused(tmp_path):
    """With the size that does."""
    made = anndata.AnnData(np.ones((3001, 1), "f4"))
    made.obs_names, made.var_names = [str(row) for row in range(3001)], ["g"]
    words = r"cuts 3001 rows into 1501 datasets of 2 rows of about 4 bytes, .*use at least 4 rows"
    with pytest.raises(ConfigError, match=words):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([made], dataset_size="2")


@pytest.mark.parametrize("size", [2, 3], ids=["tables", "rows"])
def test_a_damaged_file_is_named(tmp_path, size):
    """Wherever the damage shows: in the tables of a file, or in its rows."""
    place = tmp_path / "a.h5ad"
    small_anndata(40, 6).write_h5ad(place)
    with h5py.File(place, "r+") as file:
        if size == 2:
            del file["obs/kind/codes"]
        else:
            del file["X/data"]
    with pytest.raises(DataError, match=rf"{place}.*(damaged|cannot be read)"):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([place], rng=0)


def broken_file(place):
    """A file of which rows 150 to 199 of a matrix cannot be read."""
    made = small_anndata(300, 6)
    made.write_h5ad(place)
    with h5py.File(place, "r+") as file:
        attributes = dict(file["obsm/pca"].attrs)
        del file["obsm/pca"]
        array = file.create_dataset("obsm/pca", data=made.obsm["pca"], chunks=(50, 3), fletcher32=True)
        array.attrs.update(attributes)
        array.id.write_direct_chunk((150, 0), b"x" * (50 * 3 * 4 + 4))
    return place


def test_a_writing_that_failed_is_no_killed_one(tmp_path):
    """Nothing is left where nothing was done; else the next call clears what is, without a word about other inputs."""
    place, collection = broken_file(tmp_path / "a.h5ad"), DatasetCollection(tmp_path / "c.zarr")
    with pytest.raises(DataError, match=r"a\.h5ad: rows 0 to 300 of obsm/pca cannot be read"):
        collection.add_adatas([place], rng=0)
    assert not collection.path.with_name("c.zarr.writing").exists()
    small = {"rng": 0, "memory_budget": "1MB", "dataset_size": 2000}
    long = small_anndata(8000, 6, seed=1)
    with pytest.raises(DataError, match=r"a\.h5ad: rows .* of obsm/pca cannot be read") as failure:
        collection.add_adatas([long, place], **small)
    assert "the same call continues it, any other call deletes it" in failure.value.__notes__[0]
    assert collection.path.with_name("c.zarr.writing").exists()
    collection.add_adatas([small_anndata(30, 6)], **small)  # warnings are errors
    assert not collection.path.with_name("c.zarr.writing").exists()
    assert len(collection.obs(["n"])) == 30


def test_a_file_of_a_column_that_was_lost_is_missed(tmp_path):
    """Its categories would all be the first one: an error with its name, wherever obs is read or written again."""
    made = small_anndata(30, 6)
    made.obs["same"] = pd.Categorical(["a"] * 30)  # of codes that are all 0 Zarr writes no file
    made.obs["zero"] = 0
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([made], rng=0)
    held = collection.path / "dataset_0" / "obs"
    assert not (held / "same" / "codes" / "c").exists()
    for name in ("kind/codes", "n"):
        place = shutil.copytree(collection.path, tmp_path / f"{name[0]}.zarr")
        shutil.rmtree(place / "dataset_0" / "obs" / name / "c")
        column, lost = name.partition("/")[0], DatasetCollection(place)
        said = rf"dataset_0/obs/{name}/c/0 is missing: .* the manifest .* says that it does not"
        for read in (
            lambda column=column, lost=lost: RowSource(lost, obs=[column]),
            lambda column=column, lost=lost: lost.obs([column]),
            lambda lost=lost: Loader(lost, shuffle=False),
            lambda lost=lost: lost.add_adatas([], reshuffle=True),
        ):
            with pytest.raises(DataError, match=said):
                read()
        assert RowSource(lost, obs=["same", "zero"]).categories == {"same": ("a",)}


def test_another_matrix_does_not_stand_for_x(tmp_path):
    """X by columns is refused with what can be read; by name the layer is, and X where there is none."""
    made = small_anndata(20, 6)
    made.X = made.X.tocsc()
    place = write_anndata(made, tmp_path / "csc.zarr")
    order = Order(place, batch_size=5)
    with pytest.raises(DataError, match=r"X is stored column by column .*matrices=\['layers/counts'\]"):
        OrderedLoader(place, order=order, device=None)
    assert "layers/counts" in RowSource(place, matrices=["layers/counts"]).fields
    assert len(OrderedLoader(place, order=order, matrices=["layers/counts"], device=None)) == 4
    made.X = None
    none = write_anndata(made, tmp_path / "none.zarr")
    for (batch,) in OrderedLoader(none, order=Order(none, batch_size=20), device=None):
        assert list(batch.fields) == ["layers/counts"]


def test_values_in_memory_that_do_not_fit_are_an_error(tmp_path):
    """As those of a store: a number beyond the dtype that is wanted is never wrapped, sparse or dense."""
    made = small_anndata(20, 6)
    made.X = (made.X * 100).tocsr()
    place = write_anndata(made, tmp_path / "a.zarr")
    for source in (place, made):
        order = Order(source, batch_size=20)
        for options in ({}, {"dense": True}):
            with pytest.raises(DataError, match=r"do not fit (the requested dtype|uint8)"):
                list(OrderedLoader(source, order=order, dtype="u1", device=None, **options))
            for (batch,) in OrderedLoader(source, order=order, dtype="i4", device=None, **options):
                rows = batch["X"].toarray() if not options else batch["X"]
                np.testing.assert_array_equal(rows, made.X[batch.ids].toarray())
