"""Arrays that zarr-python has opened: in memory, in ZIP files, in folders."""

import pickle

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest
from rankwise.errors import DataError

DATA = np.arange(60).reshape(15, 4)
LAYOUTS = {
    "plain": {"chunks": (2, 3)},
    "sharded": {"chunks": (2, 2), "shards": (4, 4)},
    "version-2": {"chunks": (2, 3), "zarr_format": 2},
}


def rows(meta, *wanted):
    return BoxRequest(
        arrays=(meta,), which=np.zeros(len(wanted), np.int64), starts=np.array([[row, 0] for row in wanted], np.int64),
        shape=(1, 4), dtype=meta.dtype,
    )  # fmt: skip


def read(reader, request):
    out = np.zeros((len(request), 1, 4), request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    assert report.valid.all(), report.errors
    return out[:, 0], report


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_store_in_memory_is_read_and_travels(layout):
    """Rows are right, through zarr-python; a pickled reader brings the array along."""
    array = zarr.create_array(zarr.storage.MemoryStore(), data=DATA, **LAYOUTS[layout])
    with BoxReader() as reader:
        meta = reader.adopt(array)
        assert (meta.codec.kind, meta.codec.why) == ("zarr", "a MemoryStore")
        assert meta.place.startswith("zarr-memory://")
        got, report = read(reader, rows(meta, 3, 14, 3))
        np.testing.assert_array_equal(got, DATA[[3, 14, 3]])
        assert (report.slow_chunks, report.fast_chunks) == (4, 0)
        with pickle.loads(pickle.dumps(reader)) as arrived:
            np.testing.assert_array_equal(read(arrived, rows(meta, 9))[0], DATA[[9]])


def test_a_zip_file_is_read(tmp_path):
    """So is an array inside a ZIP file, by several threads."""
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, name="x", data=DATA, chunks=(2, 4))
    array = zarr.open_array(zarr.storage.ZipStore(tmp_path / "a.zip", mode="r"), path="x", mode="r")
    with BoxReader(threads=2) as reader:
        got, _ = read(reader, rows(reader.adopt(array), *range(15)))
    np.testing.assert_array_equal(got, DATA)


def test_an_array_in_a_folder_is_read_as_any_other(tmp_path):
    """Its own decoders read it, and the place is its folder."""
    array = zarr.create_group(tmp_path).create_array("x", data=DATA, chunks=(2, 4))
    with BoxReader() as reader:
        meta = reader.adopt(array)
        assert meta.place == str(tmp_path / "x")
        assert read(reader, rows(meta, 7))[1].fast_chunks == 1


def test_arrays_that_call_themselves_the_same_stay_apart():
    """Two arrays whose stores have one name are two arrays."""

    class Named(zarr.storage.MemoryStore):
        def __str__(self):
            return "memory://same"

    first, second = (zarr.create_array(Named(), data=DATA + add, chunks=(2, 4)) for add in (0, 100))
    with BoxReader() as reader:
        metas = [reader.adopt(array) for array in (first, second)]
        assert metas[0].place != metas[1].place
        assert reader.adopt(first).place == metas[0].place
        got = [int(read(reader, rows(meta, 0))[0][0, 0]) for meta in metas]
    assert got == [0, 100]


def test_sizes_of_files(tmp_path):
    """Encoded bytes of a file, -1 for one that was never written; the same in a folder and in memory."""
    for store in (zarr.storage.MemoryStore(), zarr.storage.LocalStore(tmp_path)):
        array = zarr.create_array(store, shape=(8, 4), chunks=(4, 4), dtype="i4", compressors=None)
        array[:4] = 1
        with BoxReader() as reader:
            meta = reader.adopt(array)
            assert [reader.stored_bytes(meta, coords) for coords in ((0, 0), (1, 0))] == [64, -1]


def test_what_batches_cannot_hold_is_refused():
    """Texts of variable length, and arrays without axes."""
    with BoxReader() as reader:
        text = zarr.create_array(zarr.storage.MemoryStore(), shape=(3,), dtype=str, zarr_format=2)
        with pytest.raises(DataError, match="variable-length strings"):
            reader.adopt(text)
        with pytest.raises(DataError, match="no axis"):
            reader.adopt(zarr.create_array(zarr.storage.MemoryStore(), shape=(), dtype="i4"))
