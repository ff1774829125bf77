"""`BoxReader` against zarr-python: boxes byte for byte, damage told, chunks decoded once."""

import numpy as np
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.testing.stores.plain_boxes import read_plainly

CODECS = {
    "zstd": {"compressors": [ZstdCodec(level=1)]},
    "blosc-lz4": {"compressors": [BloscCodec(cname="lz4")]},
    "blosc-zstd": {"compressors": [BloscCodec(cname="zstd", shuffle="bitshuffle")]},
    "gzip": {"compressors": [GzipCodec()]},
    "raw": {"compressors": None},
    "big-endian": {"compressors": None, "serializer": BytesCodec(endian="big")},
}
DTYPES = ["u1", "i2", "u2", "i4", "f4", "f8", "?", "u8"]


@st.composite
def arrays(draw, ndim):
    shape = tuple(draw(st.integers(1, 14)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 6)) for _ in range(ndim))
    options = {"shape": shape, "chunks": chunks, "dtype": draw(st.sampled_from(DTYPES)), "fill_value": 1}
    if draw(st.integers(0, 3)) == 0:
        options |= {"zarr_format": 2, "order": draw(st.sampled_from("CF"))}
        options["chunk_key_encoding"] = {"name": "v2", "separator": draw(st.sampled_from("./"))}
    else:
        options |= CODECS[draw(st.sampled_from(sorted(CODECS)))]
        if draw(st.booleans()):
            options["shards"] = tuple(c * draw(st.integers(1, 3)) for c in chunks)
        elif draw(st.booleans()):
            options["chunk_key_encoding"] = {"name": draw(st.sampled_from(["default", "v2"])), "separator": "."}
    return options


def written(options, rng, root):
    """An array with random values in some of its chunks."""
    array = zarr.create_array(root, overwrite=True, **options)
    data = rng.integers(0, 2 if options["dtype"] == "?" else 100, options["shape"]).astype(options["dtype"])
    if rng.random() < 0.3:
        region = tuple(slice(0, int(rng.integers(1, n + 1))) for n in options["shape"])
        array[region] = data[region]
    else:
        array[...] = data
    return read_meta(str(root))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_boxes_are_those_of_zarr(tmp_path_factory, data):
    """Any layout, codec, key encoding, fill value, padding, dtype: every box equals what zarr-python gives."""
    root = tmp_path_factory.mktemp("boxes")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ndim = data.draw(st.integers(1, 4))
    metas = tuple(written(data.draw(arrays(ndim)), rng, root / str(k)) for k in range(data.draw(st.integers(1, 3))))
    num = data.draw(st.integers(0, 6))
    which = rng.integers(0, len(metas), num)
    pad = data.draw(st.sampled_from([None, "fill", "edge", "reflect"]))
    smallest = np.min([meta.shape for meta in metas], axis=0)
    shape = tuple(int(rng.integers(1, (n if pad is None else n + 4) + 1)) for n in smallest)
    starts = np.empty((num, ndim), np.int64)
    for box in range(num):
        for axis in range(ndim):
            room = metas[which[box]].shape[axis] - shape[axis]
            starts[box, axis] = (
                rng.integers(0, room + 1) if pad is None else rng.integers(-5, metas[which[box]].shape[axis] + 4)
            )
    stored = {meta.dtype for meta in metas}
    dtype = (
        data.draw(st.sampled_from(["f4", "f8", "i8"]))
        if len(stored) > 1
        else data.draw(st.sampled_from(["f4", *(d.str for d in stored)]))
    )
    scaled = (
        {"scale": rng.random(len(metas)), "offset": rng.random(len(metas))}
        if dtype == "f4" and data.draw(st.booleans())
        else {}
    )
    request = BoxRequest(
        arrays=metas, which=which, starts=starts, shape=shape, dtype=np.dtype(dtype), pad=pad, **scaled
    )
    expected, out = np.empty((num, *shape), dtype), np.full((num, *shape), 77, dtype)
    assert read_plainly(request, expected).valid.all()
    with BoxReader(
        cache=data.draw(st.sampled_from([0, 500, 10**6])), threads=data.draw(st.sampled_from([1, 2]))
    ) as reader:
        for _ in range(2):
            plan = reader.plan(request)
            (report,) = reader.read([(plan, out)])
            assert report.valid.all(), report.errors
            np.testing.assert_array_equal(out, expected)
            out[...] = 77
