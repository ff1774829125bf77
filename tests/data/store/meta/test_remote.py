"""Metadata behind URLs."""

import json
from itertools import count

import pytest
import zarr

from rankwise.data.store import Catalogue, StoredNodes, build_catalogue, iter_images, list_arrays, open_image, read_meta
from rankwise.data.store.remote import RemoteFiles, memory_store
from rankwise.errors import ConfigError, DataError

obstore = pytest.importorskip("obstore")
number = count()


@pytest.fixture
def bucket():
    """An empty store in memory, by URL."""
    return f"memory://meta{next(number)}"


@pytest.fixture
def remote():
    with RemoteFiles() as files:
        yield files


def upload(folder, url):
    prefix = url.removeprefix("memory://").partition("/")[2]
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(memory_store(url), f"{prefix}/{path.relative_to(folder)}".lstrip("/"), path.read_bytes())


def test_images_behind_a_url(writer, tmp_path, bucket):
    """A plate and its images are found and opened behind a URL as they are in a folder."""
    writer.plate(tmp_path / "d" / "p.zarr")
    writer.image(tmp_path / "d" / "i.zarr", labels=("nuclei",))
    upload(tmp_path / "d", bucket)
    assert [ref.name for ref in iter_images(bucket)] == [ref.name for ref in iter_images(tmp_path / "d")]
    image = open_image(f"{bucket}/i.zarr/")
    local = open_image(tmp_path / "d" / "i.zarr")
    assert [(level.array.shape, level.scale) for level in image.levels] == [
        (level.array.shape, level.scale) for level in local.levels
    ]
    assert image.label("nuclei").levels[0].array.place == f"{bucket}/i.zarr/labels/nuclei/0"
    assert image.levels[0].array.is_remote


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_consolidated_metadata_save_requests(tmp_path, bucket, remote, zarr_format):
    """Behind a URL a group that carries its consolidated metadata is asked once, whatever it holds."""
    group = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
    for path in ("a/x", "a/y", "b"):
        group.create_array(path, shape=(4,), chunks=(2,), dtype="u1", attributes={"of": path})
    upload(tmp_path / "g", f"{bucket}/plain")
    zarr.consolidate_metadata(tmp_path / "g", zarr_format=zarr_format)
    upload(tmp_path / "g", f"{bucket}/g")
    local = list_arrays(tmp_path / "g")
    found = list_arrays(f"{bucket}/g", nodes=StoredNodes(remote))
    assert {path: (meta.shape, meta.attributes, meta.fingerprint) for path, meta in found.items()} == {
        path: (meta.shape, meta.attributes, meta.fingerprint) for path, meta in local.items()
    }
    assert remote.stats.requests <= 5


def test_damaged_consolidated_metadata_are_an_error(tmp_path, bucket):
    """A copy that is no object names the group."""
    zarr.create_group(tmp_path / "g", zarr_format=2)
    (tmp_path / "g" / ".zmetadata").write_text(json.dumps({"metadata": 3}))
    upload(tmp_path / "g", f"{bucket}/g")
    with pytest.raises(DataError, match=f"{bucket}/g/.zmetadata"):
        list_arrays(f"{bucket}/g")


def test_an_array_behind_a_url_is_asked_once(tmp_path, bucket, remote):
    """What was read from a URL is kept for a while, because looking again would be a request."""
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1")
    upload(tmp_path / "a", f"{bucket}/a")
    nodes = StoredNodes(remote)
    metas = [read_meta(f"{bucket}/a", nodes=nodes) for _ in range(5)]
    assert all(meta is metas[0] for meta in metas)
    assert remote.stats.requests == 1


def test_a_wrong_url_is_an_error(bucket):
    """Nothing there, or a scheme that nobody knows, is said."""
    with pytest.raises(DataError, match=f"no Zarr array or group at {bucket}/nothing"):
        read_meta(f"{bucket}/nothing")
    with pytest.raises(ConfigError, match="ftp://"):
        read_meta("ftp://host/a")


def test_a_catalogue_of_urls(writer, tmp_path, bucket):
    """A catalogue of URLs answers without requests; checking reads the documents again."""
    writer.image(tmp_path / "i.zarr")
    upload(tmp_path, bucket)
    catalogue = Catalogue.from_bytes(build_catalogue([bucket]).to_bytes())
    assert [ref.name for ref in catalogue.images()] == ["i.zarr"]
    catalogue.check()
    name = "i.zarr/0/zarr.json" if writer.zarr_format == 3 else "i.zarr/0/.zarray"
    obstore.put(memory_store(bucket), name, (tmp_path / name).read_bytes().replace(b"16", b"15"))
    with pytest.raises(DataError, match=f"the metadata of {bucket}/i.zarr/0 changed"):
        catalogue.check()
    assert catalogue.images()[0].open().levels[0].array.shape == (2, 8, 16, 16)
