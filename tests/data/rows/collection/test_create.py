"""A collection is made only where nothing else lies."""

import errno

import anndata
import pytest
import zarr

from rankwise.data.rows import DatasetCollection, RowSource, write_sharded
from rankwise.errors import ConfigError, DataError
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_anndata_store_is_not_replaced(tmp_path, zarr_format):
    """The path of an AnnData store, given by mistake, is refused, and the store can be read as before."""
    made = small_anndata(20, 5)
    place = write_anndata(made, tmp_path / "mine.zarr", zarr_format=zarr_format)
    for group in (place, zarr.open_group(place, mode="r+")):
        with pytest.raises(ConfigError, match=r"mine.zarr is a store of the type 'anndata'.* a separate path"):
            DatasetCollection(group)
    assert (anndata.read_zarr(place).X != made.X).nnz == 0


def test_what_is_no_group_is_refused(tmp_path):
    """Files, what lies below them, links to nothing, arrays and groups of Zarr v2 are refused by name."""
    made = small_anndata(20, 5)
    made.write_h5ad(tmp_path / "a.h5ad")
    zarr.create_array(str(tmp_path / "array.zarr"), shape=(3,), dtype="i4")
    zarr.open_group(str(tmp_path / "old.zarr"), mode="w", zarr_format=2)
    (tmp_path / "lost.zarr").symlink_to(tmp_path / "scratch.zarr")
    with pytest.raises(ConfigError, match=r"lost.zarr is a link to \S*/scratch.zarr, which does not exist, but"):
        DatasetCollection(tmp_path / "lost.zarr")
    with (
        pytest.warns(UserWarning, match=r"names of collections must end in .zarr"),
        pytest.raises(ConfigError, match=r"a.h5ad is a file, but a collection is a folder: .* an input"),
    ):
        DatasetCollection(tmp_path / "a.h5ad")
    below = tmp_path / "a.h5ad" / "cells.zarr"
    said = r"a.h5ad/cells.zarr lies in \S+/a.h5ad, which is a file, but a (collection|store) is a folder"
    with pytest.raises(ConfigError, match=said):
        DatasetCollection(below)
    with pytest.raises(ConfigError, match=said):
        write_sharded(below, made)
    with pytest.raises(ConfigError, match=r"a.h5ad is a file, but a store is a folder"):
        write_sharded(tmp_path / "a.h5ad", made)
    with pytest.raises(DataError, match=r"array.zarr is not a Zarr group"):
        DatasetCollection(tmp_path / "array.zarr")
    with pytest.raises(ConfigError, match="Zarr v3 group, got v2: choose a new path"):
        DatasetCollection(tmp_path / "old.zarr")


def test_a_folder_that_cannot_be_made_is_said(tmp_path, monkeypatch):
    """A disk that is full before the first byte is one message, too."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zarr, "create_group", full)
    with pytest.raises(DataError, match=r"No space left on device. \S+/c.zarr is unchanged, nothing was started"):
        DatasetCollection(tmp_path / "c.zarr")


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    """A collection, and what is chosen from it, is found after the working folder has changed."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    collection = DatasetCollection("cells.zarr")
    collection.add_adatas([write_anndata(small_anndata(5), "one.zarr")])
    monkeypatch.chdir("elsewhere")
    assert collection.path == tmp_path / "cells.zarr"
    assert len(collection.obs()) == 5
    assert RowSource(collection).num_samples == 5


def test_a_folder_named_nearly_like_a_dataset_is_left_alone(tmp_path):
    """What is no number to Python, although it is a digit to Unicode, counts no dataset."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    (tmp_path / "c.zarr" / "dataset_²").mkdir()
    collection.add_adatas([small_anndata(5)])
    assert list(collection.manifest["datasets"]) == ["dataset_0"]
    assert (tmp_path / "c.zarr" / "dataset_²").is_dir()
