"""The column `src_path`: what was passed, and what it can and cannot tell apart."""

import pytest

from rankwise.data.rows import DatasetCollection, verify_rows
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders, each with other rows in a file of the same name; the first one is the current folder."""
    for number, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        small_anndata(30, 4, seed=number).write_h5ad(tmp_path / name / "a.h5ad")
    monkeypatch.chdir(tmp_path / "first")
    return tmp_path


def sources(collection):
    return [source["src_path"] for write in collection.manifest["writes"] for source in write["sources"]]


def test_paths_stay_as_they_were_passed(folders):
    """Relative ones stay relative, as in annbatch: the collection names no folder of the machine that wrote it."""
    passed = ["./a.h5ad", folders / "second" / "a.h5ad"]
    collection = DatasetCollection("c.zarr").add_adatas(passed, rng=0)
    assert sources(collection) == ["./a.h5ad", str(folders / "second" / "a.h5ad")]
    assert set(collection.obs(["src_path"])["src_path"]) == set(sources(collection))
    again = DatasetCollection("d.zarr").add_adatas(["a.h5ad"], rng=0)
    assert set(again.obs(["src_path"])["src_path"]) == {"a.h5ad"}


def test_relative_paths_are_found_from_where_they_were_passed(folders, monkeypatch):
    """Comparing with the sources from elsewhere says what to do."""
    DatasetCollection("c.zarr").add_adatas(["a.h5ad"], rng=0)
    assert verify_rows(folders / "first" / "c.zarr", sources=True) == []
    monkeypatch.chdir(folders)
    [problem] = verify_rows(folders / "first" / "c.zarr", sources=True)
    assert problem.startswith("a.h5ad cannot be compared: nothing found at a.h5ad")
    assert problem.endswith("(src_path is relative to the folder of the original call: run this there)")


@pytest.mark.filterwarnings("ignore:.*new rows are shuffled among themselves")
def test_one_name_is_one_source(folders, monkeypatch):
    """Another file of the same relative path is taken for the same one, which is said with the way out of it."""
    collection = DatasetCollection(folders / "c.zarr").add_adatas(["a.h5ad"], rng=0)
    monkeypatch.chdir(folders / "second")
    with pytest.warns(
        UserWarning, match=r"twice \(paths are compared as they were passed: for other files pass absolute"
    ):
        collection.add_adatas(["a.h5ad"], rng=0)
    collection = DatasetCollection(folders / "d.zarr").add_adatas([folders / "first" / "a.h5ad"], rng=0)
    collection.add_adatas([folders / "second" / "a.h5ad"], rng=0)
    assert verify_rows(folders / "d.zarr", sources=True) == []


def test_raw_is_kept_by_a_function(tmp_path):
    """The way that `rankwise rows info` names: raw becomes X, with its own variables."""
    import anndata

    made = small_anndata(30, 4)
    made.raw = small_anndata(30, 7, seed=1)
    place = write_anndata(made, tmp_path / "a.zarr")
    with pytest.warns(UserWarning, match="raw of .* is dropped"):
        DatasetCollection(tmp_path / "x.zarr").add_adatas([place], rng=0)
    written = DatasetCollection(tmp_path / "c.zarr").add_adatas(
        [place], load_adata=lambda path: anndata.read_zarr(path).raw.to_adata(), shuffle=False
    )
    [group] = written
    assert (anndata.io.read_elem(group["X"]) != made.raw.X).nnz == 0
    assert len(written.tables_of_variables()[""]) == 7
