"""The arrays of a group."""

import pytest
import zarr

from rankwise.data.store import list_arrays, read_meta
from rankwise.errors import DataError


@pytest.fixture(params=[2, 3])
def group(request, tmp_path):
    made = zarr.create_group(tmp_path / "g", zarr_format=request.param)
    for path in ("b", "a/x", "a/y"):
        made.create_array(path, shape=(4,), chunks=(2,), dtype="u1")
    return made


def test_arrays_by_path(group, tmp_path):
    """Arrays of groups inside are listed too, each as if it had been read by itself."""
    found = list_arrays(tmp_path / "g")
    assert list(found) == ["a/x", "a/y", "b"]
    assert found["a/y"] == read_meta(tmp_path / "g" / "a" / "y")


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_the_arrays_themselves_go_before_a_stale_copy(group, tmp_path):
    """Consolidated metadata that are no longer true do not hide what is there."""
    zarr.consolidate_metadata(tmp_path / "g", zarr_format=group.metadata.zarr_format)
    group.create_array("later", shape=(4,), chunks=(2,), dtype="u1")
    del group["b"]
    assert list(list_arrays(tmp_path / "g")) == ["a/x", "a/y", "later"]


def test_an_array_that_cannot_be_read_raises_or_is_collected(group, tmp_path):
    """Objects cannot form batches: the first such array raises, or all are collected with their reasons."""
    group.create_array("words", shape=(2,), dtype=str)
    with pytest.raises(DataError, match="variable-length strings"):
        list_arrays(tmp_path / "g")
    bad = {}
    assert list(list_arrays(tmp_path / "g", bad=bad)) == ["a/x", "a/y", "b"]
    assert list(bad) == ["words"]


def test_an_array_is_no_group(group, tmp_path):
    """Listing a single array says what to do instead."""
    with pytest.raises(DataError, match="single Zarr array"):
        list_arrays(tmp_path / "g" / "b")
    with pytest.raises(DataError, match="no such folder"):
        list_arrays(tmp_path / "nothing")


def test_a_group_whose_images_are_damaged_is_not_listed(tmp_path):
    """From Zarr 3 on the attribute "ome" is an object: one that is not is no set of plain arrays, either."""
    zarr.create_group(tmp_path / "g", zarr_format=3, attributes={"ome": "damaged"}).create_array(
        "a", shape=(4,), chunks=(2,), dtype="u1"
    )
    with pytest.raises(DataError, match="is a Zarr group, not an array; it holds items that cannot be listed"):
        read_meta(tmp_path / "g")
