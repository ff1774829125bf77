"""Random codecs for a dtype, from all that zarr-python supports."""

from __future__ import annotations

import importlib
from random import Random
from typing import Any

import numpy as np

from rankwise.data.contract import DType

_COMPRESSORS = ("zstd", "lz4", "lz4hc", "blosclz", "zlib")
_CHECKSUMS = ("Adler32", "CRC32", "CRC32C", "Fletcher32")


def v2_codecs(rng: Random, dtype: DType) -> tuple[list[Any] | None, Any, bool]:
    """Return filters, a compressor, and whether they need small values."""
    numcodecs = importlib.import_module("numcodecs")
    filters, tame = _lossy(rng, dtype, numcodecs) if rng.random() < 0.25 else (None, False)
    compressor = rng.choice(
        (
            lambda: None,
            lambda: numcodecs.Zlib(rng.randint(0, 9)),
            lambda: numcodecs.GZip(rng.randint(0, 9)),
            lambda: numcodecs.BZ2(rng.randint(1, 9)),
            lambda: numcodecs.LZMA(preset=rng.randint(0, 3)),
            numcodecs.LZ4,
            lambda: numcodecs.Zstd(rng.randint(-3, 5), checksum=rng.random() < 0.5),
            lambda: _numcodecs_blosc(rng, numcodecs.Blosc),
            lambda: _numcodecs_blosc(rng, numcodecs.Blosc),
        )
    )()
    return filters, compressor, tame


def v3_chain(rng: Random, dtype: DType, chunks: tuple[int, ...]) -> tuple[tuple[int, ...], Any, Any, Any, bool]:
    """Return the shape of files, array filters, the serializer, byte codecs, and whether they need small values."""
    filters, serializer, compressors, tame = _inner(rng, dtype, len(chunks))
    if rng.random() < 0.45:
        return chunks, filters, serializer, compressors, tame
    outer, codecs = chunks, [*filters, serializer, *compressors]
    for _ in range(2 if rng.random() < 0.15 else 1):
        sharding = _sharding(rng, outer, codecs)
        outer, codecs = tuple(extent * rng.randint(1, 3) for extent in outer), [sharding]
    after = [_byte_codec(rng, dtype)] if rng.random() < 0.05 else []
    return outer, [], codecs[0], after, tame


def _sharding(rng: Random, chunks: tuple[int, ...], codecs: list[Any]) -> Any:
    zarr = importlib.import_module("zarr.codecs")
    index = [zarr.BytesCodec(endian="big" if rng.random() < 0.05 else "little")]
    if rng.random() < 0.8:
        index.append(zarr.Crc32cCodec())
    return zarr.ShardingCodec(
        chunk_shape=chunks, codecs=codecs, index_codecs=index, index_location=rng.choice(("end", "end", "start"))
    )


def _inner(rng: Random, dtype: DType, ndim: int) -> tuple[list[Any], Any, list[Any], bool]:
    zarr = importlib.import_module("zarr.codecs")
    filters: list[Any] = []
    tame = False
    if rng.random() < 0.08:
        filters.append(zarr.TransposeCodec(order=tuple(rng.sample(range(ndim), ndim))))
    if rng.random() < 0.08:
        lossy, tame = _lossy(rng, dtype, importlib.import_module("zarr.codecs.numcodecs"))
        filters += lossy or []
    endian = None if dtype.itemsize == 1 and rng.random() < 0.7 else "big" if rng.random() < 0.08 else "little"
    # half of the draws are codecs that rankwise decodes itself
    how = rng.random()
    if how < 0.6:
        compressors = [_fast_codec(rng, dtype)]
    elif how < 0.75:
        compressors = []
    else:
        compressors = [_byte_codec(rng, dtype) for _ in range(rng.choice((1, 1, 2)))]
    return filters, zarr.BytesCodec(endian=endian), compressors, tame


def _fast_codec(rng: Random, dtype: DType) -> Any:
    zarr, theirs = importlib.import_module("zarr.codecs"), importlib.import_module("zarr.codecs.numcodecs")
    return rng.choice(
        (
            lambda: zarr.ZstdCodec(level=rng.randint(-5, 6), checksum=rng.random() < 0.5),
            lambda: _blosc(rng, dtype),
            lambda: _blosc(rng, dtype),
            lambda: theirs.LZ4(acceleration=rng.randint(1, 5)),
            lambda: theirs.Zstd(level=rng.randint(0, 5)),
            lambda: _numcodecs_blosc(rng, theirs.Blosc),
        )
    )()


def _byte_codec(rng: Random, dtype: DType) -> Any:
    zarr, theirs = importlib.import_module("zarr.codecs"), importlib.import_module("zarr.codecs.numcodecs")
    return rng.choice(
        (
            lambda: _fast_codec(rng, dtype),
            lambda: zarr.GzipCodec(level=rng.randint(0, 9)),
            zarr.Crc32cCodec,
            lambda: theirs.BZ2(level=rng.randint(1, 9)),
            lambda: theirs.Zlib(level=rng.randint(1, 9)),
            lambda: theirs.GZip(level=rng.randint(1, 9)),
            lambda: theirs.LZMA(preset=rng.randint(0, 3)),
            lambda: theirs.Shuffle(elementsize=dtype.itemsize),
            getattr(theirs, rng.choice(_CHECKSUMS)),
        )
    )()


def _blosc(rng: Random, dtype: DType) -> Any:
    zarr = importlib.import_module("zarr.codecs")
    return zarr.BloscCodec(
        cname=rng.choice(_COMPRESSORS),
        clevel=rng.randint(0, 9),
        shuffle=rng.choice(("noshuffle", "shuffle", "bitshuffle")),
        typesize=rng.choice((dtype.itemsize, dtype.itemsize, 1, 3, 8, 16, 255)),
        blocksize=rng.choice((0, 0, 64, 130, 4096)),
    )


def _numcodecs_blosc(rng: Random, make: Any) -> Any:
    return make(
        cname=rng.choice(_COMPRESSORS),
        clevel=rng.randint(0, 9),
        shuffle=rng.choice((-1, 0, 1, 2)),
        blocksize=rng.choice((0, 0, 64, 130, 4096)),
    )


def _lossy(rng: Random, dtype: DType, codecs: Any) -> tuple[list[Any] | None, bool]:
    """Return array-to-array codecs, of numcodecs or wrapped by zarr-python, and whether they need small values."""
    name = dtype.str if codecs.__name__ == "numcodecs" else dtype.name
    if dtype.kind == "b":
        return [codecs.PackBits()], True
    if dtype.kind == "c":
        return None, False
    choices: list[Any] = [lambda: codecs.Delta(dtype=name)]
    if dtype.kind == "f":
        choices += [
            lambda: codecs.Quantize(digits=rng.randint(1, 3), dtype=name),
            lambda: codecs.BitRound(keepbits=rng.randint(1, np.finfo(dtype).nmant)),
        ]
        if dtype.itemsize > 2:
            wanted = "<i4" if codecs.__name__ == "numcodecs" else "int32"
            choices.append(lambda: codecs.FixedScaleOffset(offset=1, scale=2, dtype=name, astype=wanted))
    elif dtype.itemsize > 1:  # for one byte, zarr-python writes wider elements without byte order and cannot read them
        wide = "<i8" if codecs.__name__ == "numcodecs" else "int64"
        choices.append(lambda: codecs.AsType(encode_dtype=wide, decode_dtype=name))
    return [rng.choice(choices)()], True
