"""How chunks are split, encoded and stored in files: `Coding`, dtypes and fill values, from documents."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.store.meta.values import ChunkCodec
from rankwise.data.store.shard import IndexLayout


class UnsupportedError(Exception):
    """A part of a document that we do not support exactly: zarr-python interprets it. Never leaves this package.

    The message is short, for example "gzip" or "big-endian": it becomes `ChunkCodec.why`.
    """


class UnreadableError(Exception):
    """A document that is invalid for zarr-python, too; becomes a `DataError`. Never leaves this package."""


def is_int(value: Any) -> bool:
    """Whether a parsed JSON value is an integer (True and False are not)."""
    return type(value) is int


def positive_ints(value: Any, what: str, *, least: int = 1) -> tuple[int, ...]:
    """Return a list of integers as a tuple; all of them at least `least`.

    Raises:
        UnsupportedError: it is anything else.
    """
    if type(value) is not list or not all(is_int(item) and item >= least for item in value):
        raise UnsupportedError(f"{what} {value!r}")
    return tuple(value)


def named(value: Any, what: str) -> tuple[str, dict[str, Any]]:
    """Return name and configuration of {"name": ..., "configuration": {...}}; a missing configuration is empty.

    Raises:
        UnsupportedError: it is anything else, or has more keys.
    """
    if type(value) is not dict or type(value.get("name")) is not str or not value.keys() <= {"name", "configuration"}:
        raise UnsupportedError(f"{what} {value!r}")
    config = value.get("configuration", {})
    if type(config) is not dict:
        raise UnsupportedError(f"{what} {value['name']} with the configuration {config!r}")
    return value["name"], config


def subset(config: dict[str, Any], allowed: set[str], what: str) -> None:
    """Check that a configuration has no keys but the allowed ones.

    Raises:
        UnsupportedError: it has other keys.
    """
    if not config.keys() <= allowed:
        raise UnsupportedError(f"{what} with {', '.join(sorted(config.keys() - allowed))}")


_Kind = Literal["raw", "zstd", "blosc", "lz4"]
# The settings of each compressor, and which values our decoders are sure of.
_SETTINGS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "zstd": {"level": lambda value: is_int(value) and value <= 22, "checksum": lambda value: type(value) is bool},
    "blosc": {
        "cname": lambda value: str(value) in {"zstd", "lz4", "lz4hc", "blosclz", "zlib"},
        "typesize": lambda value: is_int(value) and value >= 1,
        "clevel": lambda value: is_int(value) and 0 <= value <= 9,
        "blocksize": lambda value: is_int(value) and value >= 0,
    },
    "lz4": {"acceleration": is_int},
}
_SHUFFLES: tuple[Any, ...] = ("noshuffle", "shuffle", "bitshuffle")
_NUMBERED_SHUFFLES: tuple[Any, ...] = (-1, 0, 1, 2)


class Coding(NamedTuple):
    """Shape and encoding of an inner chunk, and the layout of the index of shards, if there are shards."""

    chunks: tuple[int, ...]
    codec: ChunkCodec
    shard_index: IndexLayout | None = None


def v3_coding(codecs: Any, grid: tuple[int, ...], dtype: DType) -> Coding:
    """Return the coding from the codecs of a version 3 document.

    Args:
        codecs: the document's "codecs".
        grid: chunk shape of the document's chunk grid: the part in one file.
        dtype: dtype of the elements.

    Raises:
        UnsupportedError: our decoders do not support the codecs.
    """
    if _name(_listed(codecs)[0]) != "sharding_indexed":
        return Coding(grid, ChunkCodec(kind=_chain(codecs, dtype)))
    index = index_layout(codecs, grid)
    config = codecs[0]["configuration"]
    return Coding(tuple(config["chunk_shape"]), ChunkCodec(kind=_chain(config.get("codecs"), dtype)), index)


def v2_coding(document: Mapping[str, Any], chunks: tuple[int, ...], *, big_endian: bool) -> Coding:
    """Return the coding from a version 2 document.

    Raises:
        UnsupportedError: our decoders do not support it.
    """
    filters = document.get("filters")
    if filters not in (None, []):
        listed = filters if type(filters) is list else [filters]
        ids = [str(part.get("id")) if type(part) is dict else repr(part) for part in listed]
        raise UnsupportedError(f"filter {', '.join(ids)}")
    if document.get("order") != "C" and len(chunks) > 1:
        raise UnsupportedError(f"order {document.get('order')}")
    if big_endian:
        raise UnsupportedError("big-endian")
    config = document.get("compressor")
    kind: _Kind = "raw"
    if config is not None:
        if type(config) is not dict or type(config.get("id")) is not str:
            raise UnsupportedError(f"compressor {config!r}")
        rest = {key: value for key, value in config.items() if key != "id"}
        kind = _kind(config["id"], rest, _NUMBERED_SHUFFLES)
    return Coding(chunks, ChunkCodec(kind=kind))


def index_layout(codecs: Any, grid: tuple[int, ...]) -> IndexLayout:
    """Return the index layout of an array's shards.

    Raises:
        UnsupportedError: there are no shards, or the index is unsupported.
    """
    name, config = named(_listed(codecs)[0], "codec")
    if name != "sharding_indexed":
        raise UnsupportedError(name)
    if len(codecs) > 1:
        raise UnsupportedError(f"{_name(codecs[1])} after sharding")
    subset(config, {"chunk_shape", "codecs", "index_codecs", "index_location"}, name)
    chunks = positive_ints(config.get("chunk_shape"), "inner chunk shape")
    if len(chunks) != len(grid) or any(whole % part for whole, part in zip(grid, chunks, strict=True)):
        raise UnsupportedError(f"inner chunk shape {list(chunks)}")
    index_codecs = [named(codec, "index codec") for codec in _listed(config.get("index_codecs"))]
    if index_codecs not in (
        [("bytes", {"endian": "little"})],
        [("bytes", {"endian": "little"}), ("crc32c", {})],
    ):
        raise UnsupportedError("a shard index of another kind")
    location = config.get("index_location", "end")
    if location not in ("start", "end"):
        raise UnsupportedError(f"a shard index at {location!r}")
    return IndexLayout(
        chunks_per_shard=tuple(whole // part for whole, part in zip(grid, chunks, strict=True)),
        at_end=location == "end",
        checked=len(index_codecs) == 2,
    )


def _chain(codecs: Any, dtype: DType) -> _Kind:
    """Return the kind of the codecs [bytes] or [bytes, compressor]."""
    parts = [named(codec, "codec") for codec in _listed(codecs)]
    names = [name for name, _ in parts]
    if names[:1] != ["bytes"]:
        raise UnsupportedError(
            "nested sharding" if names[:1] == ["sharding_indexed"] else " then ".join(names[:1]) or "none"
        )
    _check_bytes(parts[0][1], dtype)
    if len(parts) == 1:
        return "raw"
    if len(parts) > 2:
        raise UnsupportedError(" then ".join(names[1:]))
    name, config = parts[1]
    plain = name.removeprefix("numcodecs.")  # the compressors of version 2
    if name == "lz4" or plain not in _SETTINGS:
        raise UnsupportedError(plain)
    if "configuration" not in codecs[1]:
        raise UnsupportedError(f"{name} without a configuration")
    return _kind(plain, config, _SHUFFLES if plain == name else _NUMBERED_SHUFFLES)


def _check_bytes(config: dict[str, Any], dtype: DType) -> None:
    subset(config, {"endian"}, "bytes")
    endian = config.get("endian")
    if dtype.itemsize == 1 and endian in (None, "little", "big"):
        return
    if endian != "little":
        raise UnsupportedError("big-endian" if endian == "big" else f"bytes of endian {endian!r}")


def _kind(name: str, config: dict[str, Any], shuffles: tuple[Any, ...]) -> _Kind:
    settings = _SETTINGS.get(name)
    if settings is None:
        raise UnsupportedError(name)
    if name == "blosc":
        settings = settings | {"shuffle": lambda value: type(value) in {int, str} and value in shuffles}
        config = {"cname": None, "clevel": None} | config  # required: None is none of their values
    subset(config, set(settings), name)
    for key, value in config.items():
        if not settings[key](value):
            raise UnsupportedError(f"{name} with {value if key == 'cname' else f'{key} {value!r}'}")
    return cast("_Kind", name)


def _name(codec: Any) -> Any:
    return codec.get("name") if type(codec) is dict else codec


def _listed(codecs: Any) -> list[Any]:
    if type(codecs) is not list or not codecs:
        raise UnsupportedError(f"codecs {codecs!r}")
    return codecs


CORE = {
    dtype.name: dtype
    for dtype in map(np.dtype, ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"))
}
_V2 = {dtype.newbyteorder(">").str: dtype for dtype in CORE.values()} | {dtype.str: dtype for dtype in CORE.values()}
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_HEX = {4: ">e", 8: ">f", 16: ">d"}
_HEX_DIGITS = re.compile(r"0x[0-9a-fA-F]+")


def is_core(dtype: DType) -> bool:
    """Whether a dtype is in Zarr's core set."""
    return dtype.name in CORE and dtype.kind in "biufc"


def v2_dtype(text: Any) -> tuple[DType, bool]:
    """Return the dtype for a name in a version 2 document, in native byte order, and whether it is stored big-endian.

    Raises:
        UnsupportedError: it is not numeric, or has a form that zarr-python does not write.
    """
    if type(text) is not str or text not in _V2:
        raise UnsupportedError(f"dtype {text!r}")
    return _V2[text], text[0] == ">"


def fill_scalar(dtype: DType, value: Any, *, zarr_format: int) -> Any:
    """Return a fill value as a value of `dtype`.

    Version 2 allows null (zero), version 3 hexadecimal floats ("0x7fc00000"). Both allow "NaN", "Infinity" and
    "-Infinity"; complex numbers are pairs.

    Raises:
        UnsupportedError: it has another form, or does not fit.
    """
    if value is None and zarr_format == 2:
        return np.zeros((), dtype)[()]
    if dtype.kind in "iu" and is_int(value):
        info = np.iinfo(dtype)
        if info.min <= value <= info.max:
            return dtype.type(value)
    elif dtype.kind == "b" and type(value) is bool:
        return np.bool_(value)
    elif dtype.kind == "f":
        return _rounded(dtype, _real(value, zarr_format))
    elif dtype.kind == "c" and type(value) is list and len(value) == 2:
        return _rounded(dtype, complex(_real(value[0], zarr_format), _real(value[1], zarr_format)))
    raise UnsupportedError(f"fill value {value!r}")


def _rounded(dtype: DType, value: complex) -> Any:
    with np.errstate(over="ignore"):  # 1e300 as float32 is infinity, as when it is written
        return dtype.type(value)


def _real(value: Any, zarr_format: int) -> float:
    if type(value) is float or (is_int(value) and abs(value) < 2**53):
        return float(value)
    if type(value) is str and value in _SPECIAL:
        return _SPECIAL[value]
    if type(value) is str and zarr_format == 3 and _HEX_DIGITS.fullmatch(value) and len(value) - 2 in _HEX:
        return float(struct.unpack(_HEX[len(value) - 2], bytes.fromhex(value[2:]))[0])
    raise UnsupportedError(f"fill value {value!r}")
