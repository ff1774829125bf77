"""What a killed writing has left is taken up by the same call, and by no other that only looks the same."""

import contextlib
import json
import shutil

import anndata
import numpy as np
import pytest
import zarr

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection import contents, writer
from rankwise.data.rows.collection.buckets import Buckets
from rankwise.data.rows.collection.options import WriteOptions
from rankwise.testing.stores.small_rows import small_anndata, write_anndata

THROWN = "unfinished writing of other inputs or parameters, or into other datasets, and is deleted"


class StoppedError(Exception):
    pass


@pytest.fixture
def stop(monkeypatch):
    """Begin to write, up to the moment before datasets would move in; return what was decided."""

    def begin(place, *inputs, **options):
        def publish(*_):
            raise StoppedError

        with monkeypatch.context() as patched, contextlib.suppress(StoppedError):
            patched.setattr(writer, "_publish", publish)
            DatasetCollection(place).add_adatas(inputs, matrices=["X"], **options)
        return json.loads((place.with_name(f"{place.name}.writing") / "journal.json").read_bytes())

    return begin


def rows_of(place, name="dataset_0"):
    """The rows of a dataset in the order of their source."""
    made = anndata.read_zarr(place / name)
    return made.X.toarray()[np.argsort(made.obs["src_row"].to_numpy())]


def test_the_same_rows_in_memory_go_on(tmp_path, stop):
    """The seed that was drawn at first is that of the collection."""
    begun = stop(tmp_path / "c.zarr", small_anndata(40))
    made = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40)], matrices=["X"])
    assert made.manifest["writes"][0]["seed"] == begun["seed"]
    np.testing.assert_array_equal(rows_of(made.path), small_anndata(40).X.toarray())


@pytest.mark.parametrize("number_of_rows", [40, 5000])
def test_other_values_in_memory_begin_anew(tmp_path, stop, number_of_rows):
    """Rows of the same shape and names, normalised meanwhile: none of the old ones is in the collection."""
    stop(tmp_path / "c.zarr", small_anndata(number_of_rows))
    other = small_anndata(number_of_rows)
    other.X *= 2
    with pytest.warns(UserWarning, match=THROWN):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([other], matrices=["X"])
    np.testing.assert_array_equal(rows_of(tmp_path / "c.zarr"), other.X.toarray())


def test_another_function_begins_anew(tmp_path, stop):
    """`load_adata` that chooses another layer of the same file is another input."""
    source = small_anndata(40)
    source.write_h5ad(tmp_path / "a.h5ad")

    def load(layer):
        def loaded(path):
            held = anndata.read_h5ad(path)
            return anndata.AnnData(X=held.layers[layer] if layer else held.X, obs=held.obs, var=held.var)

        return loaded

    stop(tmp_path / "c.zarr", tmp_path / "a.h5ad", load_adata=load(None))
    with pytest.warns(UserWarning, match=THROWN):
        DatasetCollection(tmp_path / "c.zarr").add_adatas(
            [tmp_path / "a.h5ad"], load_adata=load("counts"), matrices=["X"]
        )
    np.testing.assert_array_equal(rows_of(tmp_path / "c.zarr"), source.layers["counts"].toarray())


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_store_whose_values_were_replaced_begins_anew(tmp_path, stop, by):
    """The metadata of a Zarr store stay as they are when its values change; they are looked at."""
    source = small_anndata(40)
    source.X = source.X.tocsc() if by == "columns" else source.X
    write_anndata(source, tmp_path / "a.zarr")
    stop(tmp_path / "c.zarr", tmp_path / "a.zarr")
    values = zarr.open_array(tmp_path / "a.zarr" / "X" / "data", mode="r+")
    values[:] = values[:] + 1
    with pytest.warns(UserWarning, match=THROWN):
        DatasetCollection(tmp_path / "c.zarr").add_adatas([tmp_path / "a.zarr"], matrices=["X"])
    source.X.data += 1
    np.testing.assert_array_equal(rows_of(tmp_path / "c.zarr"), source.X.toarray())


def test_a_collection_that_was_deleted_meanwhile(tmp_path, stop):
    """Rows that were cut to the variables of a collection that is gone come whole, and nothing is listed of it."""
    DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40, 6)], matrices=["X"])
    with pytest.warns(UserWarning, match="3 variables are not in the collection"):
        stop(tmp_path / "c.zarr", small_anndata(40, 9, seed=1))
    shutil.rmtree(tmp_path / "c.zarr")
    with pytest.warns(UserWarning, match=THROWN):
        made = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40, 9, seed=1)], matrices=["X"])
    assert list(made.manifest["datasets"]) == ["dataset_0"]
    np.testing.assert_array_equal(rows_of(tmp_path / "c.zarr"), small_anndata(40, 9, seed=1).X.toarray())


def test_a_failed_writing_keeps_no_file_open(tmp_path, monkeypatch):
    """Rows that cannot be taken from their bucket in the second pass leave no open file and no thread behind."""
    streams = []

    class Watched(contents.ShardStream):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            streams.append(self)

    def broken(_job, _part, start, _stop):
        rows = small_anndata(40).X
        yield start, rows[:30]
        raise StoppedError

    monkeypatch.setattr(contents, "ShardStream", Watched)
    monkeypatch.setattr(contents, "_bucket_rows", broken)
    with pytest.raises(StoppedError):
        DatasetCollection(tmp_path / "c.zarr").add_adatas(
            [small_anndata(40)], matrices=["X"], n_obs_per_chunk=8, shuffle=False
        )
    assert len(streams) == 2
    assert all(stream._file is None or stream._file._file.closed for stream in streams)
    assert all(stream._encoder._pool._shutdown for stream in streams)


@pytest.mark.parametrize("seed", [7, np.int64(7)])
def test_seeds_are_whole_numbers_of_any_kind(tmp_path, seed):
    """Those of NumPy are in the manifest like those of Python."""
    made = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(20)], rng=seed)
    assert made.manifest["writes"][0]["seed"] == 7


def test_many_buckets(tmp_path, monkeypatch):
    """With a budget for a few rows only, rows pass through many buckets and blocks, and arrive all the same."""
    monkeypatch.setattr(WriteOptions, "part_rows", lambda *_: 7)
    real, opened = Buckets.open, set()
    monkeypatch.setattr(Buckets, "open", lambda self, number: opened.add(number) or real(self, number))
    source = small_anndata(124, 9)
    made = [
        anndata.read_zarr(group)
        for group in DatasetCollection(tmp_path / "c.zarr").add_adatas([source], dataset_size=50, rng=0)
    ]
    assert [part.n_obs for part in made] == [41, 41, 42]
    assert opened == set(range(18))  # 7 rows to a bucket
    together = anndata.concat(made)[source.obs_names]
    for mine, theirs in ((together.X, source.X), (together.layers["counts"], source.layers["counts"])):
        np.testing.assert_array_equal(mine.toarray(), theirs.toarray())
    np.testing.assert_array_equal(together.obsm["pca"], source.obsm["pca"])
    assert together.obs[["kind", "name"]].astype(str).equals(source.obs[["kind", "name"]].astype(str))
