"""Every image below a place, with who it is."""

import shutil

import pytest
import zarr

from rankwise.data.store import iter_images
from rankwise.errors import DataError


def names(place, **options):
    return [ref.name for ref in iter_images(place, **options)]


def test_a_plate_yields_its_fields(writer, tmp_path):
    """Fields come in the plate's order, each with plate, well, field and acquisition."""
    writer.plate(tmp_path / "p.zarr", wells=("B/2", "A/1"))
    refs = list(iter_images(tmp_path / "p.zarr"))
    assert [ref.name for ref in refs] == ["p.zarr/B/2/0", "p.zarr/B/2/1", "p.zarr/A/1/0", "p.zarr/A/1/1"]
    last = refs[-1]
    assert (last.kind, last.plate, last.well, last.field, last.acquisition) == ("image", "p.zarr", "A/1", "1", 3)
    assert last.open().levels[0].array.shape == (2, 8, 16, 16)


def test_identity_does_not_depend_on_the_path(writer, tmp_path):
    """A store has the same name whether it, or the folder around it, is searched, and in a copy elsewhere."""
    writer.image(tmp_path / "here" / "i.zarr")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert names(tmp_path / "here") == names(tmp_path / "here" / "i.zarr") == names(tmp_path / "there") == ["i.zarr"]


def test_a_folder_of_stores_in_natural_order(writer, tmp_path):
    """Plain folders are walked; levels and labels are parts of their image; "2" comes before "10"."""
    writer.image(tmp_path / "day10" / "b.zarr", labels=("nuclei",))
    writer.image(tmp_path / "day2" / "a.zarr")
    zarr.create_array(tmp_path / "volume", shape=(4,), chunks=(2,), dtype="u1")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    shutil.copytree(tmp_path / "day2", tmp_path / ".hidden" / "day2")
    assert names(tmp_path) == ["day2/a.zarr", "day10/b.zarr", "volume"]


def test_arrays_of_a_group_come_by_themselves(tmp_path):
    """Arrays that belong to no image are images of their own kind."""
    group = zarr.create_group(tmp_path / "g")
    group.create_array("b/c", shape=(4,), chunks=(2,), dtype="u1")
    group.create_array("a", shape=(4,), chunks=(2,), dtype="u1")
    refs = list(iter_images(tmp_path / "g"))
    assert [(ref.name, ref.kind) for ref in refs] == [("g/a", "array"), ("g/b/c", "array")]
    assert names(tmp_path / "g" / "a") == ["a"]


def test_series_of_bioformats2raw_in_their_order(writer, tmp_path):
    """A converted file yields its series in the order that it states, else in natural order."""
    writer.group(tmp_path / "f.zarr", {"bioformats2raw.layout": 3})
    for name in ("0", "1", "10"):
        writer.image(tmp_path / "f.zarr" / name, num_levels=1)
    assert names(tmp_path / "f.zarr") == ["f.zarr/0", "f.zarr/1", "f.zarr/10"]
    writer.group(tmp_path / "f.zarr" / "OME", {"series": ["10", "0", "1"]})
    assert names(tmp_path / "f.zarr") == ["f.zarr/10", "f.zarr/0", "f.zarr/1"]


def test_what_is_missing_raises_or_is_collected(writer, tmp_path):
    """A field that a well names must be there; with `bad` the search goes on and says what was wrong."""
    writer.plate(tmp_path / "p")
    shutil.rmtree(tmp_path / "p" / "A" / "1" / "0")
    with pytest.raises(DataError, match="its parent's metadata name it"):
        names(tmp_path / "p")
    bad = {}
    assert names(tmp_path / "p", bad=bad) == ["p/A/1/1", "p/B/2/0", "p/B/2/1"]
    assert list(bad) == [str(tmp_path / "p" / "A" / "1" / "0")]


def test_a_place_that_does_not_exist_is_refused(tmp_path):
    """A wrong path is an error, not an empty answer."""
    with pytest.raises(DataError, match="no such folder"):
        names(tmp_path / "nothing")


def test_links_in_circles_end(tmp_path):
    """A link to a folder above is an error that says so, not an endless search."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    with pytest.raises(DataError, match="check for circular links"):
        names(tmp_path)
