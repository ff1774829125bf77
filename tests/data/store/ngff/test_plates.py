"""Plates: rows, columns, wells, fields, acquisitions."""

import shutil

import pytest

from rankwise.data.store import open_plate
from rankwise.data.store.ngff.discovery import Acquisition
from rankwise.errors import DataError


def test_a_plate_has_wells_and_fields(writer, tmp_path):
    """Rows, columns, acquisitions, wells and the images of a well are reached by name."""
    writer.plate(tmp_path / "p.zarr")
    plate = open_plate(tmp_path / "p.zarr")
    assert (plate.name, plate.rows, plate.columns) == ("screen", ("A", "B"), ("1", "2"))
    assert plate.acquisitions == (Acquisition(id=3, name="day 1"),)
    assert [(well.row, well.column) for well in plate] == [("A", "1"), ("B", "2")]
    fields = plate.well("B/2").fields()
    assert [(field.path, field.acquisition) for field in fields] == [("0", 3), ("1", 3)]
    assert fields[1].open().place == str(tmp_path / "p.zarr" / "B" / "2" / "1")


def test_an_unknown_well_lists_the_known_ones(writer, tmp_path):
    """A well that is not on the plate is answered with those that are."""
    writer.plate(tmp_path / "p")
    with pytest.raises(DataError, match="no well 'H/12'; it has 'A/1', 'B/2'"):
        open_plate(tmp_path / "p").well("H/12")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ome: ome.update(plate=3), "expected an object"),
        (lambda ome: ome.pop("plate"), "not an OME-Zarr plate"),
        (lambda ome: ome["plate"].pop("wells"), "has no 'wells'"),
        (lambda ome: ome["plate"].update(rows=[{}]), "has no 'name'"),
        (lambda ome: ome["plate"]["wells"][0].update(rowIndex=7), "rowIndex 7"),
        (lambda ome: ome["plate"]["wells"][0].update(rowIndex=1), "give row 'B', column '1'"),
        (lambda ome: ome["plate"]["wells"][0].update(path="../x"), "expected one below it"),
        (lambda ome: ome["plate"].update(acquisitions=[{"id": "a"}]), "'id'"),
    ],
)
def test_damaged_plates_say_where(writer, tmp_path, edit, change, says):
    """A missing or damaged part is an error that names the plate and the part."""
    writer.plate(tmp_path / "p")
    edit(tmp_path / "p", change)
    with pytest.raises(DataError, match=says) as caught:
        open_plate(tmp_path / "p")
    assert str(tmp_path / "p") in str(caught.value)


def test_a_missing_or_damaged_well_says_where(writer, tmp_path, edit):
    """A well that the plate names must be there and be one."""
    writer.plate(tmp_path / "p")
    edit(tmp_path / "p" / "A" / "1", lambda ome: ome.pop("well"))
    shutil.rmtree(tmp_path / "p" / "B")
    first, second = open_plate(tmp_path / "p")
    with pytest.raises(DataError, match=r"the well .*A/1 has no 'well'"):
        first.fields()
    with pytest.raises(DataError, match=r"the well 'B/2' .* is missing"):
        second.fields()
