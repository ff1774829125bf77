"""A disk that is too small is said before hours of work."""

import shutil
from types import SimpleNamespace

import pytest

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection.options import warn_of_room
from rankwise.testing.stores.small_rows import small_anndata


def test_a_disk_that_is_too_small(tmp_path, monkeypatch):
    """What is free is compared with the rows on their way before they are read; the writing is tried."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.warns(
        UserWarning, match=r"all rows are first stored uncompressed in .*c.zarr.writing.* 1e-06 GB are free"
    ):
        made = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40, 5)], rng=0)
    assert len(made.obs(["n"])) == 40


def test_what_lies_there_is_not_counted_again(tmp_path, monkeypatch, recwarn):
    """A writing that goes on needs room for the rest only."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    (tmp_path / "buckets").mkdir()
    (tmp_path / "buckets" / "0").write_bytes(bytes(5000))
    warn_of_room(tmp_path, 5900.0)
    assert not recwarn.list
