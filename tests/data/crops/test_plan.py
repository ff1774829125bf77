"""`plan_crops`: boxes of a list of samples in one buffer, bad samples apart from good ones."""

import re

import numpy as np
import pytest
import zarr

from rankwise.data.crops import DecodeError, DtypeMismatch, InvalidSample, RankMismatch, Scaling, Status, StorageError
from rankwise.data.crops.fields import CropField, FieldBoxes
from rankwise.data.crops.plan import plan_crops
from rankwise.data.feed import HostBuffer
from rankwise.data.store import BoxReader, read_meta
from rankwise.errors import ConfigError, SampleError


@pytest.fixture
def volume(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(1, 1000, (20, 30, 40)).astype("u2")
    zarr.create_array(str(tmp_path / "v"), data=values, chunks=(5, 10, 10), shards=(10, 30, 40))
    return read_meta(str(tmp_path / "v")), values


def boxes(meta, starts, shape, *, rows=None, which=None):
    starts = np.array(starts, dtype=np.int64)
    arrays = meta if isinstance(meta, tuple) else (meta,)
    which = np.zeros(len(starts), dtype=np.int64) if which is None else np.array(which)
    rows = np.arange(len(starts)) if rows is None else np.array(rows)
    return FieldBoxes(arrays=arrays, which=which, starts=starts, shape=shape, rows=rows)


def read(fields, given, num_samples, first_id=100):
    buffer = HostBuffer()
    with BoxReader() as engine:
        plan = plan_crops(fields, given, engine, ids=np.arange(first_id, first_id + num_samples))
        report = plan.read(buffer)
    return {name: buffer.arrays(name)[0] for name in plan.specs}, report


def test_boxes_land_in_their_rows(volume):
    """Row i of each field is box i, cast and scaled."""
    meta, values = volume
    fields = {
        "image": CropField(shape=(4, 8, 16), dtype=np.dtype("f4"), normalise=Scaling.standard(500.0, 250.0)),
        "label": CropField(shape=(2, 3, 4), dtype=np.dtype("u2")),
    }
    starts, small = [(0, 0, 0), (16, 22, 24), (3, 5, 7)], [(1, 2, 3), (18, 27, 36), (0, 0, 0)]
    given = {"image": [boxes(meta, starts, (4, 8, 16))], "label": [boxes(meta, small, (2, 3, 4))]}
    out, report = read(fields, given, 3)
    for i, (a, b) in enumerate(zip(starts, small, strict=True)):
        wanted = values[a[0] : a[0] + 4, a[1] : a[1] + 8, a[2] : a[2] + 16].astype("f4")
        np.testing.assert_allclose(out["image"][i], (wanted - 500) / 250, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(out["label"][i], values[b[0] : b[0] + 2, b[1] : b[1] + 3, b[2] : b[2] + 4])
    assert report.valid.all()
    assert report.errors == ()


def test_several_boxes_make_one_sample(tmp_path):
    """Channels that do not lie side by side come as boxes of one channel each; axes of extent 1 may fall away."""
    values = np.arange(4 * 6 * 8, dtype="i4").reshape(4, 6, 8)
    zarr.create_array(str(tmp_path / "c"), data=values, chunks=(1, 3, 8))
    meta = read_meta(str(tmp_path / "c"))
    fields = {"image": CropField(shape=(2, 5, 4), dtype=np.dtype("i4"))}
    given = {"image": [boxes(meta, [(3, 0, 1), (0, 0, 1), (3, 1, 4), (0, 1, 4)], (1, 5, 4), rows=[0, 1])]}
    out, _ = read(fields, given, 2)
    np.testing.assert_array_equal(out["image"][0], values[[3, 0], 0:5, 1:5])
    np.testing.assert_array_equal(out["image"][1], values[[3, 0], 1:6, 4:8])


def test_arrays_of_other_axes_share_a_field(volume, tmp_path):
    """Samples of a field may come from arrays with other numbers of axes, in any order."""
    meta, values = volume
    flat = np.arange(30 * 40, dtype="u2").reshape(30, 40)
    zarr.create_array(str(tmp_path / "flat"), data=flat, chunks=(10, 10))
    fields = {"image": CropField(shape=(8, 8), dtype=np.dtype("f4"))}
    given = {
        "image": [
            boxes(meta, [(2, 0, 0), (4, 9, 9)], (1, 8, 8), rows=[0, 2]),
            boxes(read_meta(str(tmp_path / "flat")), [(3, 3)], (8, 8), rows=[1]),
        ]
    }
    out, report = read(fields, given, 3)
    np.testing.assert_array_equal(out["image"][0], values[2, 0:8, 0:8])
    np.testing.assert_array_equal(out["image"][1], flat[3:11, 3:11])
    np.testing.assert_array_equal(out["image"][2], values[4, 9:17, 9:17])
    assert report.valid.all()


def test_a_box_outside_stops_its_sample_only(volume):
    """The others are read; the error names sample, box, array and the way out; its row is zeros, not left-overs."""
    meta, values = volume
    fields = {"image": CropField(shape=(4, 4, 4), dtype=np.dtype("f4"))}
    starts = [(0, 0, 0), (18, 0, 0), (4, 4, 4), (-1, 0, 0)]
    out, report = read(fields, {"image": [boxes(meta, starts, (4, 4, 4))]}, 4)
    assert report.valid.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(out["image"][2], values[4:8, 4:8, 4:8])
    assert not out["image"][[1, 3]].any()
    first, second = report.errors
    assert isinstance(first, InvalidSample)
    assert isinstance(first, SampleError)
    assert isinstance(first, ConfigError)
    assert (first.sample, second.sample) == (101, 103)
    assert first.aabb == ((18, 22), (0, 4), (0, 4))
    assert first.status is Status.INVALID
    assert "sample 101" in str(first)
    assert 'pad="fill"' in str(first)
    assert meta.place in str(first)


def test_wrong_axes_and_dtypes_are_told(volume, tmp_path):
    """Each kind of misfit has its own error, and all of them are the sample's own."""
    meta, _ = volume
    zarr.create_array(str(tmp_path / "complex"), data=np.ones((8, 8), "c8"), chunks=(8, 8))
    fields = {"image": CropField(shape=(4, 4), dtype=np.dtype("f4"))}
    given = {
        "image": [
            boxes(meta, [(0, 0)], (4, 4), rows=[0]),
            boxes(read_meta(str(tmp_path / "complex")), [(0, 0)], (4, 4), rows=[1]),
        ]
    }
    _, report = read(fields, given, 2)
    assert [type(error) for error in report.errors] == [RankMismatch, DtypeMismatch]
    assert not report.valid.any()
    assert len(report.errors) == 2


@pytest.mark.parametrize("pad", ["fill", "edge", "reflect"])
def test_padding_equals_numpy(tmp_path, pad):
    """Elements outside are those of `numpy.pad`, and the mask says which they are."""
    values = np.arange(6 * 7, dtype="i4").reshape(6, 7)
    zarr.create_array(str(tmp_path / "a"), data=values, chunks=(3, 4), fill_value=-5)
    meta = read_meta(str(tmp_path / "a"))
    fields = {"image": CropField(shape=(8, 4), dtype=np.dtype("i4"), pad=pad, mask=True)}
    starts = [(-2, -1), (1, 5), (0, 0)]
    out, report = read(fields, {"image": [boxes(meta, starts, (8, 4))]}, 3)
    kind = {"fill": {"mode": "constant", "constant_values": -5}}.get(pad, {"mode": pad})
    wide, inside = np.pad(values, 5, **kind), np.pad(np.ones_like(values, bool), 5)
    for i, (y, x) in enumerate(starts):
        np.testing.assert_array_equal(out["image"][i], wide[y + 5 : y + 13, x + 5 : x + 9])
        np.testing.assert_array_equal(out["image_mask"][i], inside[y + 5 : y + 13, x + 5 : x + 9])
    assert report.valid.all()


def test_damage_is_a_decode_error_of_its_sample(volume):
    """A cut shard stops the samples that lie in it, with URI, box and place; the others are right."""
    meta, values = volume
    from pathlib import Path

    shard = next(path for path in sorted(Path(meta.place).rglob("*")) if path.is_file() and path.parent.name == "0")
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    fields = {"image": CropField(shape=(4, 4, 4), dtype=np.dtype("f4"))}
    out, report = read(fields, {"image": [boxes(meta, [(0, 0, 0), (14, 4, 4)], (4, 4, 4))]}, 2)
    assert report.valid.tolist() == [False, True]
    np.testing.assert_array_equal(out["image"][1], values[14:18, 4:8, 4:8])
    (error,) = report.errors
    assert isinstance(error, DecodeError | StorageError)
    assert error.uri == meta.place
    assert error.aabb == ((0, 4), (0, 4), (0, 4))


def test_damage_is_told_with_every_place(volume):
    """Store, array, chunk, byte range and sample: what is needed to find the bytes and to leave them out."""
    from pathlib import Path

    meta, _ = volume
    shard = next(path for path in sorted(Path(meta.place).rglob("*")) if path.is_file() and path.parent.name == "0")
    content = bytearray(shard.read_bytes())
    content[0:40] = bytes(40)
    shard.write_bytes(content)
    fields = {"image": CropField(shape=meta.shape, dtype=np.dtype("f4"))}
    _, report = read(fields, {"image": [boxes(meta, [(0, 0, 0)], meta.shape)]}, 1)
    (error,) = report.errors
    assert re.search(
        rf"sample 100 cannot be read: box \[.*\] of {re.escape(meta.place)}: chunk \(\d+, \d+, \d+\) of the array "
        rf"{re.escape(meta.place)} \(bytes \d+ to \d+ of {re.escape(str(shard))}\) is damaged",
        str(error),
    )
    assert (error.sample, error.damage) == (100, True)
    assert "bytes" in error.place


def test_boxes_must_fill_the_field(volume):
    """A caller that mixes up shapes is told, before anything is read."""
    meta, _ = volume
    fields, given = {"image": CropField(shape=(4, 4), dtype=np.dtype("f4"))}, [boxes(meta, [(0, 0, 0)], (1, 4, 5))]
    with pytest.raises(ConfigError, match="do not match it"):
        plan_crops(fields, {"image": given}, BoxReader(), ids=np.arange(1))
