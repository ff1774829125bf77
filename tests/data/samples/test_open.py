"""From paths and URLs to the fields of a source, and what is said when it does not work."""

import subprocess
import sys

import numpy as np
import pytest
import zarr

from rankwise.data.samples import ArraySource
from rankwise.errors import DataError, MissingExtraError


def test_wrong_paths_say_what_is_there(tmp_path):
    """Nothing there, a folder that is no store, a file, a group for an array, an array for a group."""
    with pytest.raises(DataError, match="no such folder"):
        ArraySource({"x": tmp_path / "none"})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(DataError, match=r"no zarr.json.*'cat.png'"):
        ArraySource.open(tmp_path / "photos")
    with pytest.raises(DataError, match="a file, not a folder"):
        ArraySource.open(tmp_path / "photos" / "cat.png")
    zarr.create_group(tmp_path / "g").create_array("x", data=np.arange(3))
    with pytest.raises(DataError, match=r"a Zarr group, not an array; it holds .*'x'"):
        ArraySource({"x": tmp_path / "g"})
    with pytest.raises(DataError, match="a single Zarr array, not a group"):
        ArraySource.open(tmp_path / "g" / "x")
    zarr.create_group(tmp_path / "empty")
    with pytest.raises(DataError, match="holds no arrays"):
        ArraySource.open(tmp_path / "empty")


def test_damaged_metadata_names_the_store(tmp_path):
    """Metadata that are no JSON are an error of the store, with its path."""
    zarr.create_array(tmp_path / "a", data=np.arange(3))
    (tmp_path / "a" / "zarr.json").write_text("{ oops")
    with pytest.raises(DataError, match="not JSON") as caught:
        ArraySource({"x": tmp_path / "a"})
    assert str(tmp_path / "a") in str(caught.value)


def test_unfit_arrays_of_a_group_hurt_only_when_taken(tmp_path):
    """A group may hold texts and scalars beside its samples: they are refused when a field is made of them."""
    group = zarr.create_group(tmp_path, zarr_format=2)
    group.create_array("x", data=np.arange(3))
    group.create_array("names", shape=(3,), dtype=str)
    group.create_array("scalar", shape=(), dtype="i4")
    assert len(ArraySource.open(tmp_path, fields=["x"])) == 3
    with pytest.raises(DataError, match="variable-length strings"):
        ArraySource.open(tmp_path, fields=["names"])
    with pytest.raises(DataError, match="no axis"):
        ArraySource.open(tmp_path, fields=["x", "scalar"])
    with pytest.raises(DataError, match="names"):
        ArraySource.open(tmp_path)


def test_zip_files_are_opened_by_zarr_python(tmp_path):
    """A path to a ZIP file with a group or an array is taken, by fields or as a whole."""
    with zarr.storage.ZipStore(tmp_path / "g.zip", mode="w") as store:
        group = zarr.create_group(store)
        group.create_array("x", data=np.arange(30).reshape(10, 3), chunks=(4, 3))
        group.create_group("deep").create_array("y", data=np.arange(10))
    source = ArraySource.open(tmp_path / "g.zip")
    assert list(source.fields) == ["deep/y", "x"]
    assert source[7]["x"].tolist() == [21, 22, 23]
    assert source[7]["deep/y"] == 7
    with pytest.raises(DataError, match="a Zarr group, not an array; it holds 'deep/y', 'x'"):
        ArraySource({"x": tmp_path / "g.zip"})
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, data=np.arange(4))
    assert ArraySource({"x": tmp_path / "a.zip"})[2]["x"] == 2
    with pytest.raises(DataError, match="a single Zarr array"):
        ArraySource.open(tmp_path / "a.zip")
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"bad\.zip cannot be opened"):
        ArraySource.open(tmp_path / "bad.zip")


def test_without_the_extra_it_is_named(tmp_path, monkeypatch):
    """Arrays in memory need nothing; for stored ones the message says what to install, before anything is read."""
    zarr.create_array(tmp_path, data=np.arange(3))
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    assert len(ArraySource({"x": np.arange(3)})) == 3
    with pytest.raises(MissingExtraError, match=r"rankwise\[data\]"):
        ArraySource({"x": tmp_path})


def test_importing_the_rooms_loads_nothing_heavy():
    """The data rooms import neither torch nor zarr nor numba before they are used."""
    code = (
        "import sys, rankwise.data.store, rankwise.data.feed, rankwise.data.samples\n"
        "print([name for name in ('torch', 'zarr', 'numba', 'numcodecs') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_our_own_codecs_needs_no_zarr_python(tmp_path):
    """Opening and reading an array that our decoders know never imports zarr-python."""
    zarr.create_group(tmp_path).create_array("x", data=np.arange(40), chunks=(4,), shards=(8,))
    code = (
        "import sys\nfrom rankwise.data.samples import ArraySource\n"
        f"assert ArraySource.open({str(tmp_path)!r})[33]['x'] == 33\n"
        "print('zarr' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_an_empty_npy_file_is_told(tmp_path):
    """A file that was never written, such as that of a killed job, is named."""
    (tmp_path / "x.npy").touch()
    with pytest.raises(DataError, match=r"x\.npy cannot be read as a NumPy array: No data left"):
        ArraySource({"x": tmp_path / "x.npy"})


def test_a_single_array_is_no_group(tmp_path):
    """The message says how to read it."""
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(6), chunks=(2,))
    with pytest.raises(DataError, match=r"a single Zarr array, .* ArraySource\(\{'image': path\}\)"):
        ArraySource.open(tmp_path / "a.zarr")
