"""Opening stores, and what is said when it does not work."""

import subprocess
import sys

import numpy as np
import pytest
import zarr

from rankwise.data.store import load_zarr, open_array, open_arrays
from rankwise.errors import DataError, MissingExtraError


def test_arrays_of_a_group_by_path(tmp_path):
    """Arrays of inner groups are found under their path; they share one cache."""
    group = zarr.create_group(tmp_path)
    group.create_array("x", data=np.arange(3))
    group.create_group("deep").create_array("y", data=np.arange(4))
    arrays = open_arrays(tmp_path)
    assert sorted(arrays) == ["deep/y", "x"]
    assert arrays["deep/y"].shape == (4,)
    assert arrays["x"].cache is arrays["deep/y"].cache
    with pytest.raises(DataError, match="no array 'z'; it holds 'deep/y', 'x'"):
        arrays["z"]


def test_wrong_paths_say_what_is_there(tmp_path):
    """Nothing there, a folder that is no store, a file, a group for an array, an array for a group."""
    with pytest.raises(DataError, match="does not exist"):
        open_array(tmp_path / "none")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(DataError, match=r"no zarr.json.*'cat.png'"):
        open_arrays(tmp_path / "photos")
    with pytest.raises(DataError, match="a file, not a folder"):
        open_arrays(tmp_path / "photos" / "cat.png")
    zarr.create_group(tmp_path / "g").create_array("x", data=np.arange(3))
    with pytest.raises(DataError, match="a Zarr group, not an array; it holds 'x'"):
        open_array(tmp_path / "g")
    with pytest.raises(DataError, match="a single Zarr array"):
        open_arrays(tmp_path / "g" / "x")


def test_damaged_metadata_names_the_store(tmp_path):
    """Metadata that are no JSON are an error of the store, with its path."""
    zarr.create_array(tmp_path / "a", data=np.arange(3))
    (tmp_path / "a" / "zarr.json").write_text("{ oops")
    with pytest.raises(DataError, match="cannot be opened") as caught:
        open_array(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)


def test_without_zarr_the_extra_is_named(monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(MissingExtraError, match=r"rankwise\[data\]"):
        load_zarr()


def test_importing_the_rooms_loads_nothing_heavy():
    """The data rooms import neither torch nor zarr nor numba before they are used."""
    code = (
        "import sys, rankwise.data.store, rankwise.data.feed, rankwise.data.samples\n"
        "print([name for name in ('torch', 'zarr', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
