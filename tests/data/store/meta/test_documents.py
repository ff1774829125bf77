"""From a path to the metadata of one array."""

import json

import numpy as np
import pytest
import zarr

from rankwise.data.store import read_meta
from rankwise.errors import DataError


@pytest.fixture
def array(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(8, 6), chunks=(2, 3), dtype="uint16", attributes={"unit": "photon"})
    return tmp_path / "a"


def test_a_path_a_text_and_a_file_url_mean_the_same(array):
    """An array is found by a path, its text, and a file:// URL; its place is absolute."""
    metas = [read_meta(array), read_meta(f"{array}/"), read_meta(f"file://{array}")]
    assert {meta.place for meta in metas} == {str(array)}
    assert metas[0].attributes == {"unit": "photon"}


def test_a_relative_path_becomes_absolute(array, monkeypatch):
    """A place stays right when the working directory changes later."""
    monkeypatch.chdir(array.parent)
    assert read_meta("a").place == str(array)


def test_version_2_is_read_with_its_attributes(tmp_path):
    """.zarray and .zattrs together make an array of version 2."""
    zarr.create_array(tmp_path / "a", shape=(8,), chunks=(2,), dtype=">f4", zarr_format=2, attributes={"x": [1]})
    meta = read_meta(tmp_path / "a")
    assert (meta.zarr_format, meta.dtype, meta.attributes) == (2, np.dtype("f4"), {"x": [1]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ('{"node_type": "arr"}', "node_type 'arr'"),
        ('{"node_type": "array", "attributes": 3}', "attributes 3"),
        ("[" * 100_000, "is not JSON"),
        ('{"node_type": "array"}', "cannot be read with its zarr.json"),
    ],
)
def test_damaged_documents_name_the_file(array, text, says):
    """A document that is cut or changed is an error that names it."""
    (array / "zarr.json").write_text(text)
    with pytest.raises(DataError, match=says) as caught:
        read_meta(array)
    assert str(array) in str(caught.value)


def test_nothing_there_says_what_is(tmp_path):
    """A wrong path is answered with what lies there."""
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"it holds 'notes\.txt'"):
        read_meta(tmp_path)
    with pytest.raises(DataError, match="it is a file"):
        read_meta(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="no such folder"):
        read_meta(tmp_path / "nothing")


def test_a_changed_document_is_read_again(array):
    """What is kept in memory follows the file."""
    first = read_meta(array)
    document = json.loads((array / "zarr.json").read_text())
    (array / "zarr.json").write_text(json.dumps(document | {"shape": [16, 6]}))
    assert (first.shape, read_meta(array).shape) == ((8, 6), (16, 6))


def test_a_fill_value_is_one_element(tmp_path):
    """zarr-python takes a list for a truth value; no chunk could be filled with it."""
    zarr.create_array(tmp_path / "a", shape=(8,), chunks=(2,), dtype="bool")
    document = tmp_path / "a" / "zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "fill_value": [-0.0, -0.0]}))
    with pytest.raises(DataError, match=r"its fill value \[False, False\] is not one element of bool"):
        read_meta(tmp_path / "a")
