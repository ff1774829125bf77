"""Boxes out of object stores: the values of zarr-python, few requests, and errors that say why."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, StoredNodes, read_meta

DATA = np.random.default_rng(3).integers(0, 99, (16, 24, 10)).astype("uint16")
LAYOUTS = {
    "sharded zstd": {"chunks": (2, 4, 5), "shards": (4, 8, 10), "compressors": ZstdCodec()},
    "blosc": {"chunks": (4, 8, 5), "compressors": BloscCodec(cname="lz4")},
    "sharded gzip": {"chunks": (2, 4, 5), "shards": (8, 8, 10), "compressors": GzipCodec()},
    "v2": {"chunks": (4, 8, 5), "zarr_format": 2},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def written(request, bucket):
    """Name of an array of which some chunks were never written, and its values."""
    name = f"boxes/{request.param.replace(' ', '_')}"
    array = zarr.create_array(
        zarr.storage.ObjectStore(bucket), name=name, shape=DATA.shape, dtype=DATA.dtype, fill_value=7,
        **LAYOUTS[request.param],
    )  # fmt: skip
    array[:8] = DATA[:8]
    return name, array[:]


def request_of(meta, starts, shape=(3, 9, 7)):
    starts = np.array(starts, np.int64)
    return BoxRequest(
        arrays=(meta,), which=np.zeros(len(starts), np.int64), starts=starts, shape=shape, dtype=np.dtype("f4")
    )


def read(reader, request):
    out = np.full((len(request), *request.shape), -1, request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    return out, report


def test_boxes_are_those_of_zarr(written, files_at, proxy):
    """Sharded or not, fast codecs or others, chunks that were never written: equal values."""
    name, values = written
    files = files_at(proxy.url)
    options = files.options
    meta = read_meta(f"s3://bucket/{name}", nodes=StoredNodes(files))
    starts = [[0, 0, 0], [6, 15, 3], [13, 2, 1], [5, 8, 2]]
    with BoxReader(remote=options, cache=0) as reader:
        out, report = read(reader, request_of(meta, starts))
    assert report.valid.all(), report.errors
    assert report.fill_chunks > 0 or "gzip" in name
    for box, start in enumerate(starts):
        window = tuple(slice(low, low + size) for low, size in zip(start, (3, 9, 7), strict=True))
        np.testing.assert_array_equal(out[box], values[window])


def test_neighbours_come_with_one_request(bucket, files_at, proxy):
    """A plan over one shard: one request for its index, one for all its chunks, none of either the second time."""
    name = "boxes/one_shard"
    array = zarr.create_array(
        zarr.storage.ObjectStore(bucket), name=name, shape=(8, 8), chunks=(2, 2), shards=(8, 8), dtype="u2"
    )
    array[...] = 3
    files = files_at(proxy.url)
    options = files.options
    meta = read_meta(f"s3://bucket/{name}", nodes=StoredNodes(files))
    with BoxReader(remote=options, threads=1) as reader:
        proxy.requests.clear()
        request = request_of(meta, [[0, 0], [4, 4]], (4, 4))
        read(reader, request)
        assert len(proxy.asked()) == 2
        read(reader, request)
        assert len(proxy.asked()) == 3  # chunks that come again are kept from their second time on
        read(reader, request)
        assert len(proxy.asked()) == 3
        assert reader.remote_stats.retries == 0


def test_trouble_is_tried_again_and_then_told(bucket, files_at, proxy):
    """503 and cut answers are tried again; what lasts is an error of the boxes that it concerns, and no damage."""
    name = "boxes/trouble"
    array = zarr.create_array(
        zarr.storage.ObjectStore(bucket), name=name, shape=(8, 8), chunks=(4, 8), dtype="u2", compressors=ZstdCodec()
    )
    array[...] = np.arange(64).reshape(8, 8)
    files = files_at(proxy.url, retries=2)
    options = files.options
    meta = read_meta(f"s3://bucket/{name}", nodes=StoredNodes(files))
    with BoxReader(remote=options, threads=1, cache=0) as reader:
        proxy.spoil("503", "cut")
        out, report = read(reader, request_of(meta, [[0, 0]], (4, 8)))
        assert report.valid.all()
        np.testing.assert_array_equal(out[0], np.arange(32).reshape(4, 8))
        assert reader.remote_stats.retries == 2
        proxy.spoil(*["503"] * 3, paths="c/1/0")
        _, report = read(reader, request_of(meta, [[0, 0], [4, 0]], (4, 8)))
    assert report.valid.tolist() == [True, False]
    assert not report.errors[0].damage
    assert "s3://bucket/boxes/trouble/c/1/0" in str(report.errors[0].error)


def test_wrong_bytes_are_damage(bucket, files_at, proxy):
    """Bytes that were changed on their way or in the store: the codec finds it, the box is told."""
    name = "boxes/wrong"
    array = zarr.create_array(
        zarr.storage.ObjectStore(bucket), name=name, shape=(4, 8), chunks=(4, 8), dtype="u2", compressors=ZstdCodec()
    )
    array[...] = 1
    files = files_at(proxy.url)
    options = files.options
    meta = read_meta(f"s3://bucket/{name}", nodes=StoredNodes(files))
    with BoxReader(remote=options, threads=1, cache=0) as reader:
        proxy.spoil("flip")
        _, report = read(reader, request_of(meta, [[0, 0]], (4, 8)))
    assert not report.valid.any()
    assert report.errors[0].damage


def test_pipelines_of_crops_take_the_same_options(bucket, files_at, proxy):
    """Both kinds of pipelines read behind an endpoint that the environment does not know, with bounded requests."""
    from rankwise import Order
    from rankwise.data import crops
    from rankwise.data.store import open_image

    array = zarr.create_array(
        zarr.storage.ObjectStore(bucket), name="crops/a", shape=DATA.shape, dtype=DATA.dtype, **LAYOUTS["sharded zstd"]
    )
    array[...] = DATA
    files = files_at(proxy.url)
    uri = "s3://bucket/crops/a"
    config = crops.Config(
        samples_per_batch=2, sample_shape=(4, 8, 10), dtype="native", device="numpy", remote=files.options
    )
    with crops.Pipeline(config) as pipeline:
        pipeline.push([crops.Sample(uri, np.s_[0:4, 8:16, 0:10]), crops.Sample(uri, np.s_[8:12, 0:8, 0:10])])
        with pipeline.pop() as batch:
            np.testing.assert_array_equal(batch["image"], [DATA[0:4, 8:16], DATA[8:12, 0:8]])
    index = crops.CropIndex(open_image(uri, nodes=StoredNodes(files)), shape=(4, 8, 10))
    with crops.IndexPipeline(index, order=Order(index, batch_size=4), device=None, remote=files.options) as pipeline:
        found = [
            (place, crop.copy())
            for (batch,) in pipeline
            for place, crop in zip(pipeline.places(batch), batch["image"], strict=True)
        ]
    assert len(found) == len(index) == 12
    for place, crop in found:
        np.testing.assert_array_equal(crop, DATA[tuple(map(slice, place.start, place.stop))])
    small = crops.Config(samples_per_batch=1, sample_shape=(1,), max_read_op_bytes=1000)
    assert small.remote_options.max_read_bytes == 1000
    with pytest.raises(crops.InvalidArgument, match="remote must be RemoteOptions"):
        crops.Config(samples_per_batch=1, sample_shape=(1,), remote="s3")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_that_has_gone_is_an_error(layout, bucket, files_at, proxy):
    """Objects that are missing because all of them were deleted are not the fill value; it is asked once."""
    name = f"boxes/gone_{layout.replace(' ', '_')}"
    store = zarr.storage.ObjectStore(bucket)
    array = zarr.create_array(store, name=name, shape=DATA.shape, dtype=DATA.dtype, fill_value=7, **LAYOUTS[layout])
    array[:8] = DATA[:8]
    files = files_at(proxy.url)
    meta = read_meta(f"s3://bucket/{name}", nodes=StoredNodes(files))
    request = request_of(meta, [[0, 0, 0], [12, 8, 2]])
    with BoxReader(remote=files.options, threads=1, cache=0) as reader:
        _, report = read(reader, request)
        assert report.valid.all()
        reader.close()
        for found in bucket.list(name).collect():
            bucket.delete(found["path"])
        proxy.requests.clear()
        for _ in range(2):
            _, report = read(reader, request)
            assert not report.valid.any()
            assert not any(error.damage for error in report.errors)
            assert "was moved or deleted after it was opened" in str(report.errors[0].error)
        document = ".zarray" if layout == "v2" else "zarr.json"
        assert sum(path.endswith(document) for path, _ in proxy.asked("HEAD")) == 1


def test_objects_that_were_never_written_cost_one_question(bucket, files_at, proxy):
    """An array that is there is asked for its metadata once, however many of its chunks are missing."""
    name = "boxes/sparse"
    zarr.create_array(
        zarr.storage.ObjectStore(bucket), name=name, shape=(16, 8), chunks=(2, 8), dtype="u2", fill_value=7
    )
    files = files_at(proxy.url)
    meta = read_meta(f"s3://bucket/{name}", nodes=StoredNodes(files))
    with BoxReader(remote=files.options, threads=1, cache=0) as reader:
        for _ in range(2):
            out, report = read(reader, request_of(meta, [[0, 0], [8, 0]], (8, 8)))
            assert report.valid.all()
            assert (out == 7).all()
    assert len(proxy.asked("HEAD")) == 1
