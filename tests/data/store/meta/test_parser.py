"""Metadata of arrays: the same facts as zarr-python, over everything it can write."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store import read_meta
from rankwise.errors import DataError

NUMBERS = [np.dtype(code).name for code in "?bhiqBHIQefdFD"]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": True}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 2, "blocksize": 0},
}
SNAPPY = {"name": "blosc", "configuration": {**BLOSC["configuration"], "cname": "snappy"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
LZ4 = {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}


def v3_document(codecs, *, dtype="uint16", shape=(30, 20), chunks=(8, 8), **more):
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    } | more


def v2_document(**more):
    return {
        "zarr_format": 2,
        "shape": [30, 20],
        "chunks": [8, 8],
        "dtype": "<u2",
        "fill_value": 0,
        "order": "C",
        "compressor": None,
        "filters": None,
    } | more


def sharding(codecs, *, chunks=(4, 2), index=(LITTLE, CRC), **more):
    config = {"chunk_shape": list(chunks), "codecs": codecs, "index_codecs": list(index), "index_location": "end"}
    return {"name": "sharding_indexed", "configuration": config | more}


def parse(document, zarr_format=3, attributes=None):
    """What is read of an array of this document, without chunks."""
    with tempfile.TemporaryDirectory() as folder:
        if zarr_format == 2:
            Path(folder, ".zattrs").write_text(json.dumps(attributes or {}))
        name = ".zarray" if zarr_format == 2 else "zarr.json"
        Path(folder, name).write_text(json.dumps(document))
        return read_meta(folder)


@pytest.mark.parametrize(
    ("codecs", "kind"),
    [
        ([LITTLE], "raw"),
        ([LITTLE, ZSTD], "zstd"),
        ([LITTLE, BLOSC], "blosc"),
        ([LITTLE, LZ4], "lz4"),
        ([LITTLE, {"name": "numcodecs.zstd", "configuration": {"level": 1}}], "zstd"),
        ([LITTLE, {"name": "numcodecs.blosc", "configuration": {"cname": "zlib", "clevel": 1, "shuffle": 1}}], "blosc"),
        ([sharding([LITTLE, ZSTD])], "zstd"),
        ([sharding([LITTLE], index_location="start")], "raw"),
        ([sharding([LITTLE], index=[LITTLE])], "raw"),
    ],
)
def test_known_chains_are_fast(codecs, kind):
    """A chain that our decoders know is named by its kind, without zarr-python."""
    meta = parse(v3_document(codecs))
    assert (meta.codec.kind, meta.codec.why) == (kind, "")


@pytest.mark.parametrize(
    ("codecs", "why"),
    [
        ([BIG, ZSTD], "big-endian"),
        ([LITTLE, GZIP], "gzip"),
        ([LITTLE, ZSTD, CRC], "zstd then crc32c"),
        ([LITTLE, CRC], "crc32c"),
        ([LITTLE, ZSTD, ZSTD], "zstd then zstd"),
        ([LITTLE, GZIP, ZSTD], "gzip then zstd"),
        ([LITTLE, SNAPPY], "blosc with snappy"),
        ([TRANSPOSE, LITTLE, ZSTD], "transpose"),
        ([sharding([TRANSPOSE, LITTLE])], "transpose"),
        ([sharding([BIG, ZSTD])], "big-endian"),
        ([sharding([LITTLE, ZSTD, CRC])], "zstd then crc32c"),
        ([sharding([sharding([LITTLE], chunks=(2, 2))])], "nested sharding"),
        ([sharding([LITTLE], index=[BIG, CRC])], "a shard index of another kind"),
        ([sharding([LITTLE]), GZIP], "gzip after sharding"),
        ([TRANSPOSE, sharding([LITTLE])], "transpose"),
    ],
)
@pytest.mark.filterwarnings("ignore:Combining a .sharding_indexed. codec")
def test_other_chains_say_why(codecs, why):
    """Any other chain goes through zarr-python, and the metadata say which part it was."""
    meta = parse(v3_document(codecs))
    assert (meta.codec.kind, meta.codec.why) == ("zarr", why)


@pytest.mark.parametrize(
    ("more", "kind", "why"),
    [
        ({}, "raw", ""),
        ({"filters": []}, "raw", ""),
        ({"compressor": {"id": "zstd", "level": 1}}, "zstd", ""),
        ({"compressor": {"id": "lz4", "acceleration": 1}}, "lz4", ""),
        ({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}}, "blosc", ""),
        ({"compressor": {"id": "zlib", "level": 1}}, "zarr", "zlib"),
        ({"dtype": ">u2"}, "zarr", "big-endian"),
        ({"order": "F"}, "zarr", "order F"),
        ({"filters": [{"id": "delta", "dtype": "<u2"}]}, "zarr", "filter delta"),
    ],
)
def test_version_2_chains(more, kind, why):
    """Compressors of version 2 without filters, in C order and little-endian, are fast; others say why they are not."""
    meta = parse(v2_document(**more), 2)
    assert (meta.codec.kind, meta.codec.why) == (kind, why)


def test_an_index_is_known_although_the_codec_is_not():
    """Shards whose chunks only zarr-python decodes still tell which chunks were written."""
    meta = parse(v3_document([sharding([LITTLE, GZIP], index_location="start")]))
    assert meta.codec.kind == "zarr"
    assert (meta.index.chunks_per_shard, meta.index.at_end, meta.index.checked) == ((2, 4), False, True)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"storage_transformers": [{"name": "x"}]}, "storage_transformers"),
        ({"novelty": {"must_understand": True}}, "novelty"),
        ({"novelty": 1}, "novelty"),
        ({"shape": [], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}}}, "no axis"),
        ({"shape": [2**62, 2**62]}, "exceed any memory"),
        ({"dimension_names": ["z"]}, "dimension_names"),
        ({"chunk_grid": {"name": "rectilinear", "configuration": {}}}, "rectilinear"),
        ({"fill_value": -1}, "OverflowError"),
        ({"data_type": "string", "fill_value": "", "codecs": [{"name": "vlen-utf8"}]}, "variable-length"),
        ({"codecs": [LITTLE, {"name": "made_up", "configuration": {}}]}, "made_up"),
    ],
)
def test_what_cannot_be_read_is_refused(more, says):
    """Extensions that must be understood, unknown codecs, objects and impossible shapes are errors that name them."""
    with pytest.raises(DataError, match=says):
        parse(v3_document([LITTLE]) | more)


def test_an_ignorable_extension_is_ignored():
    """A field that need not be understood changes nothing."""
    assert parse(v3_document([LITTLE], novelty={"must_understand": False})).codec.kind == "raw"


def test_version_2_names_axes_in_an_attribute():
    """The attribute in which xarray keeps names of axes is understood, where it fits."""
    named = parse(v2_document(), 2, {"_ARRAY_DIMENSIONS": ["y", "x"]})
    unfit = parse(v2_document(), 2, {"_ARRAY_DIMENSIONS": ["y"]})
    assert (named.dimension_names, unfit.dimension_names) == (("y", "x"), (None, None))


def test_fingerprints_follow_content():
    """Attributes do not change the fingerprint; anything that decides the elements does."""
    plain = parse(v3_document([LITTLE]))
    described = parse(v3_document([LITTLE], dimension_names=["y", "x"], attributes={"note": 1}))
    assert plain.fingerprint == described.fingerprint
    assert plain.fingerprint != parse(v3_document([LITTLE], fill_value=1)).fingerprint


def scalars(dtype):
    info = np.dtype(dtype)
    if info.kind in "iu":
        return st.integers(int(np.iinfo(info).min), int(np.iinfo(info).max))
    if info.kind == "b":
        return st.booleans()
    width = {2: 16, 4: 32, 8: 64}[info.itemsize // (1 + (info.kind == "c"))]
    real = st.floats(width=width)
    return real if info.kind == "f" else st.builds(complex, real, real)


@st.composite
def written(draw):
    """A document that zarr-python wrote for a random array, with the array."""
    zarr_format = draw(st.sampled_from([2, 3]))
    dtype = draw(st.sampled_from(NUMBERS))
    ndim = draw(st.integers(1, 4))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    config = {
        "shape": tuple(draw(st.integers(0, 40)) for _ in range(ndim)),
        "chunks": chunks,
        "dtype": draw(st.sampled_from("<>")) + np.dtype(dtype).str[1:] if zarr_format == 2 else dtype,
        "fill_value": draw(st.one_of(scalars(dtype), st.just(0))),
        "zarr_format": zarr_format,
    }
    separator = draw(st.sampled_from("./"))
    if zarr_format == 3:
        if draw(st.booleans()):
            config["shards"] = tuple(c * draw(st.integers(1, 3)) for c in chunks)
        config["serializer"] = zarr.codecs.BytesCodec(endian=draw(st.sampled_from(["little", "big"])))
        v3 = zarr.codecs
        some = [v3.ZstdCodec(level=1), v3.BloscCodec(cname="zstd"), v3.GzipCodec(), v3.Crc32cCodec()]
        config["compressors"] = draw(st.lists(st.sampled_from(some), max_size=2))
        config["chunk_key_encoding"] = {"name": draw(st.sampled_from(["default", "v2"])), "separator": separator}
        config["dimension_names"] = draw(st.none() | st.just([f"axis{i}" for i in range(ndim)]))
    else:
        import numcodecs

        some = [None, numcodecs.Zstd(), numcodecs.Blosc(), numcodecs.LZ4(), numcodecs.GZip()]
        config["compressors"] = draw(st.sampled_from(some))
        config["order"] = draw(st.sampled_from("CF"))
        config["chunk_key_encoding"] = {"name": "v2", "separator": separator}
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, **config)
    array = zarr.open_array(store, mode="r")
    name = ".zarray" if zarr_format == 2 else "zarr.json"
    return json.loads(store._store_dict[name].to_bytes()), array


@given(written())
@settings(max_examples=150, deadline=None)
def test_same_facts_as_zarr_python(case):
    """Shape, chunks, shards, dtype, fill value, keys and names of axes are what zarr-python reads in the document."""
    document, array = case
    zarr_format = array.metadata.zarr_format
    meta = parse(document, zarr_format)
    assert (meta.shape, meta.chunks, meta.files) == (array.shape, array.chunks, array.shards or array.chunks)
    assert meta.dtype == np.dtype(array.dtype).newbyteorder("=")
    assert type(meta.fill_value) is meta.dtype.type
    assert same_bits(meta.fill_value, meta.dtype.type(array.fill_value))
    assert meta.keys.key((3, 12)[: len(meta.shape)]) == array.metadata.encode_chunk_key((3, 12)[: len(meta.shape)])
    if zarr_format == 3:
        assert meta.dimension_names == (array.metadata.dimension_names or (None,) * meta.ndim)
        assert (meta.index is None) == (array.shards is None)


def same_bits(first, second):
    return np.asarray(first).tobytes() == np.asarray(second).tobytes()
