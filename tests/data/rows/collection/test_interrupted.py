"""A writing that ends early says what is there and what to do."""

import errno
import resource

import pytest

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection.buckets import Buckets
from rankwise.errors import DataError
from rankwise.testing.stores.small_rows import small_anndata


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_full_disk(tmp_path, monkeypatch):
    """A disk that takes no more is one message: what is there, that the same call goes on, what can be deleted."""
    made, place = small_anndata(40, 5), tmp_path / "c.zarr"
    with monkeypatch.context() as full:
        full.setattr(Buckets, "add", fails(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(
            DataError, match=r"No space left.*/c.zarr is unchanged. The same call continues .*\.writing"
        ):
            DatasetCollection(place).add_adatas([made], rng=0)
    assert DatasetCollection(place).is_empty
    assert len(DatasetCollection(place).add_adatas([made], rng=0).obs(["n"])) == 40
    assert not (tmp_path / "c.zarr.writing").exists()


def test_a_disk_that_fills_up_while_names_are_written(tmp_path):
    """NumPy writes arrays to files with an error that has no number; it is said as for all other files."""
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(20, 5)], rng=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
        with pytest.raises(DataError, match=r"File too large.*/c.zarr is unchanged. The same call continues"):
            collection.add_adatas([small_anndata(2000, 5, seed=1)], rng=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(collection.obs(["n"])) == 20


def test_ctrl_c(tmp_path, monkeypatch):
    """An interrupt stays one, with a note of the same; other errors of the system stay as they are."""
    for error, notes in ((KeyboardInterrupt(), 1), (OSError(errno.EIO, "broken"), 0)):
        monkeypatch.setattr(Buckets, "add", fails(error))
        with pytest.raises(type(error)) as caught:
            DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40, 5)], rng=0)
        assert len(getattr(caught.value, "__notes__", [])) == notes
    assert (tmp_path / "c.zarr.writing").exists()


def test_nothing_was_begun(tmp_path, monkeypatch):
    """A folder that may not be written is said, and that nothing was begun; rights of an input are another matter."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    for place, kind in ((tmp_path / "c.zarr.writing" / "x", DataError), (tmp_path / "a.h5ad", PermissionError)):
        monkeypatch.setattr(
            "rankwise.data.rows.collection.writer.open_input",
            fails(PermissionError(errno.EACCES, "not yours", str(place))),
        )
        with pytest.raises(kind, match="not yours") as caught:
            collection.add_adatas(["a.h5ad"])
        assert ("c.zarr is unchanged, nothing was started" in str(caught.value)) == (kind is DataError)
    assert not (tmp_path / "c.zarr.writing").exists()
