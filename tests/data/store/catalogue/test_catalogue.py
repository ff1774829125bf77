"""Catalogues: everything that stores say about themselves, in one file, without touching them again."""

import gc
import os
import pickle
import shutil

import pytest
import zarr

from rankwise.data.store import Catalogue, build_catalogue, iter_images, list_arrays, open_image, open_plate, read_meta
from rankwise.data.store.catalogue.table import RecordingNodes
from rankwise.data.store.meta.tree import STORES
from rankwise.errors import DataError


@pytest.fixture
def data(writer, tmp_path):
    """A folder with a plate, an image with labels, and a group of arrays."""
    writer.plate(tmp_path / "data" / "p.zarr")
    writer.image(tmp_path / "data" / "i.zarr", labels=("nuclei",))
    group = zarr.create_group(tmp_path / "data" / "g.zarr", attributes={"made": "by hand"})
    group.create_array("a/x", shape=(8,), chunks=(2,), dtype="f4", fill_value=float("nan"), attributes={"unit": "K"})
    return tmp_path / "data"


def everything(place, nodes):
    """All that can be asked about the stores of `data`."""
    return (
        [(ref.place, ref.kind, ref.name, ref.plate, ref.well, ref.field) for ref in iter_images(place, nodes=nodes)],
        [repr(ref.open()) for ref in iter_images(place, nodes=nodes)],
        repr(open_image(place / "i.zarr", nodes=nodes).label("nuclei")),
        repr(list_arrays(place / "g.zarr", nodes=nodes)),
        repr(open_plate(place / "p.zarr", nodes=nodes)),
        repr(read_meta(place / "p.zarr" / "A" / "1" / "0" / "0", nodes=nodes)),
    )


def test_a_catalogue_answers_as_the_stores_do(data, tmp_path):
    """Every question has the same answer from the catalogue, also after the stores have gone."""
    build_catalogue([data]).save(tmp_path / "c.idx")
    before = everything(data, STORES)
    shutil.rmtree(data)
    catalogue = Catalogue.load(tmp_path / "c.idx")
    assert everything(data, catalogue) == before
    assert [ref.open() for ref in catalogue.images()] == [ref.open() for ref in iter_images(data, nodes=catalogue)]
    with pytest.raises(DataError, match="no such folder"):
        everything(data, STORES)


def test_images_of_several_uris_in_their_order(data):
    """Images come in the order of the URIs and of the search, whatever thread was first; one place is one image."""
    uris = [data / "p.zarr", data / "i.zarr", data]
    names = [ref.name for ref in build_catalogue(uris, workers=4).images()]
    assert names == [f"p.zarr/{well}/{field}" for well in ("A/1", "B/2") for field in (0, 1)] + ["i.zarr", "g.zarr/a/x"]


def test_equal_documents_are_kept_once(writer, tmp_path):
    """Arrays that share their metadata share one document, so that a plate is small."""
    writer.plate(tmp_path / "p", wells=[f"{row}/{column}" for row in "ABCD" for column in "1234"])
    catalogue = build_catalogue([tmp_path / "p"])
    assert len(catalogue.arrays()) == 32
    assert len({catalogue._key(catalogue._rows[place]) for place in catalogue.arrays()}) == 1
    assert len(catalogue.to_bytes()) < 4000


def test_it_travels_as_bytes(data):
    """Other ranks, and other processes, get the same catalogue."""
    catalogue = build_catalogue([data])
    for copy in (Catalogue.from_bytes(catalogue.to_bytes()), pickle.loads(pickle.dumps(catalogue))):
        assert everything(data, copy) == everything(data, catalogue)
        assert (copy.roots, copy.bad, len(copy)) == ((str(data),), {}, 6)


def test_an_image_of_a_catalogue_travels_without_it(data):
    """A pickled image is small, and opens its labels from the store."""
    catalogue = build_catalogue([data])
    ref = next(ref for ref in catalogue.images() if ref.name == "i.zarr")
    for one in (ref, ref.open(), open_plate(data / "p.zarr", nodes=catalogue).wells[0]):
        copy = pickle.loads(pickle.dumps(one))
        assert (copy, copy.nodes) == (one, STORES)


def test_what_cannot_be_read_is_kept_with_its_reason(data, edit):
    """Damaged and missing parts are left out and said; the rest is there."""
    (data / "i.zarr" / "0" / (".zarray" if (data / "i.zarr" / ".zattrs").exists() else "zarr.json")).write_text("{")
    shutil.rmtree(data / "p.zarr" / "B")
    catalogue = build_catalogue([data, data / "nothing"])
    assert [ref.name for ref in catalogue.images()] == ["g.zarr/a/x", "p.zarr/A/1/0", "p.zarr/A/1/1"]
    assert catalogue.bad.keys() == {
        str(data / "i.zarr"),
        str(data / "p.zarr" / "B" / "2"),
        str(data / "nothing"),
    }
    assert "is not JSON" in catalogue.bad[str(data / "i.zarr")]


def test_a_damaged_label_does_not_lose_its_image(data):
    """An image whose label image is damaged is found, and the label is said."""
    shutil.rmtree(data / "i.zarr" / "labels" / "nuclei" / "0")
    catalogue = build_catalogue([data / "i.zarr"])
    assert len(catalogue) == 1
    assert list(catalogue.bad) == [str(data / "i.zarr" / "labels" / "nuclei")]


def test_changed_stores_are_noticed(data, tmp_path):
    """With `verify` a document that changed, or has gone, is an error that names it; without, nothing is touched."""
    build_catalogue([data]).save(tmp_path / "c.idx")
    Catalogue.load(tmp_path / "c.idx", verify=True)
    document = data / "g.zarr" / "a" / "x" / "zarr.json"
    os.utime(document, ns=(0, 0))
    with pytest.raises(DataError, match=f"the metadata of {document.parent} changed"):
        Catalogue.load(tmp_path / "c.idx", verify=True)
    shutil.rmtree(data)
    with pytest.raises(DataError, match=r"and \d+ others"):
        Catalogue.load(tmp_path / "c.idx", verify=True)
    Catalogue.load(tmp_path / "c.idx")


def test_damaged_catalogues_are_refused(data, tmp_path):
    """A file that is cut, changed, of another version or not a rankwise catalogue says so."""
    packed = build_catalogue([data]).to_bytes()
    for damaged, says in (
        (packed[:-1], "checksum"),
        (packed[:-1] + bytes([packed[-1] ^ 1]), "checksum"),
        (packed[:19] + b"\7" + packed[20:], "version 7"),
        (b"hello", "not a rankwise catalogue"),
        (b"", "not a rankwise catalogue"),
    ):
        (tmp_path / "c.idx").write_bytes(damaged)
        with pytest.raises(DataError, match=says):
            Catalogue.load(tmp_path / "c.idx")
    with pytest.raises(DataError, match="cannot be read"):
        Catalogue.load(tmp_path / "nothing.idx")


def test_saving_is_whole_or_not_at_all(data, tmp_path):
    """A folder that is not there is an error; a file that is there is replaced and nothing is left beside it."""
    catalogue = build_catalogue([data])
    with pytest.raises(DataError, match="cannot be written"):
        catalogue.save(tmp_path / "nothing" / "c.idx")
    (tmp_path / "out").mkdir()
    assert catalogue.save(tmp_path / "out" / "c.idx") == catalogue.save(tmp_path / "out" / "c.idx")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c.idx"]


def test_an_empty_folder_is_an_empty_catalogue(tmp_path):
    """Nothing found is nothing wrong: the caller decides."""
    catalogue = Catalogue.from_bytes(build_catalogue([tmp_path]).to_bytes())
    assert (len(catalogue), catalogue.arrays(), catalogue.bad) == (0, (), {})


def test_each_document_is_read_once(writer, tmp_path, monkeypatch):
    """Building reads the document of each node once, and asking the catalogue reads none."""
    from rankwise.data.store.meta import nodes

    writer.image(tmp_path / "i")
    read, plain = [], nodes.read_document
    monkeypatch.setattr(nodes, "read_document", lambda *args: read.append(args[:2]) or plain(*args))
    catalogue = build_catalogue([tmp_path / "i"])
    assert len(read) == len(set(read))
    read.clear()
    catalogue.images()[0].open()
    assert read == []


def test_a_zip_file_is_named(tmp_path):
    """Somebody may have a whole store in it."""
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=r"not a rankwise catalogue.*ZIP file is not supported: unpack it"):
        Catalogue.load(tmp_path / "a.zip")


def test_what_was_recorded_is_freed(data):
    """Images of a catalogue do not keep the documents that were read to build it."""
    made = build_catalogue([str(data)])
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is RecordingNodes]
    assert made.images()
