"""How chunks are cut, encoded and kept in files: `Coding`, from the codecs of a document.

A fast kind is claimed only for a chain of codecs that is exactly one that our decoders know, down to the keys of
every configuration. Everything else is `UnusualError`, whose message says which part it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rankwise.data.contract import DType
from rankwise.data.store.meta.strict import UnusualError, is_int, named, positive_ints, subset
from rankwise.data.store.meta.values import ChunkCodec
from rankwise.data.store.shard import IndexLayout

__all__ = ["Coding", "index_layout", "v2_coding", "v3_coding"]

_BLOSC_COMPRESSORS = {"zstd", "lz4", "lz4hc", "blosclz", "zlib"}
_COMPRESSORS = {"zstd", "blosc", "numcodecs.zstd", "numcodecs.blosc", "numcodecs.lz4"}
_SHUFFLES = {"noshuffle", "shuffle", "bitshuffle"}
_Kind = Literal["raw", "zstd", "blosc", "lz4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """From an array to bytes in files.

    Attributes:
        chunks: shape of an inner chunk.
        files: shape of what one file holds.
        codec: how an inner chunk is encoded.
        index: how shards keep their index, if there are shards.
    """

    chunks: tuple[int, ...]
    files: tuple[int, ...]
    codec: ChunkCodec
    index: IndexLayout | None


def v3_coding(codecs: Any, grid: tuple[int, ...], dtype: DType) -> Coding:
    """Return the coding that the codecs of a version 3 document say.

    Args:
        codecs: the document's "codecs".
        grid: chunk shape of the document's chunk grid: what one file holds.
        dtype: dtype of the elements.

    Raises:
        UnusualError: our decoders do not know the chain.
    """
    if type(codecs) is not list or not codecs:
        raise UnusualError(f"codecs {codecs!r}")
    if _name(codecs[0]) != "sharding_indexed":
        return Coding(chunks=grid, files=grid, codec=ChunkCodec(kind=_chain(codecs, dtype)), index=None)
    index = index_layout(codecs, grid)
    if index is None:
        raise UnusualError(_why_no_index(codecs))
    config = codecs[0]["configuration"]
    chunks = tuple(config["chunk_shape"])
    kind = _chain(config.get("codecs"), dtype)
    return Coding(chunks=chunks, files=grid, codec=ChunkCodec(kind=kind), index=index)


def v2_coding(document: Mapping[str, Any], chunks: tuple[int, ...], *, big_endian: bool) -> Coding:
    """Return the coding that a version 2 document says.

    Raises:
        UnusualError: our decoders do not know it.
    """
    if document.get("filters") not in (None, []):
        raise UnusualError(f"filter {_ids(document['filters'])}")
    if document.get("order") != "C" and len(chunks) > 1:
        raise UnusualError(f"order {document.get('order')}")
    if big_endian:
        raise UnusualError("big-endian")
    kind = _compressor(document.get("compressor"))
    return Coding(chunks=chunks, files=chunks, codec=ChunkCodec(kind=kind), index=None)


def index_layout(codecs: Any, grid: tuple[int, ...]) -> IndexLayout | None:
    """Return how the shards of an array keep their index, None where there are none or we do not know their index."""
    try:
        return _index_layout(codecs, grid)
    except UnusualError:
        return None


def _index_layout(codecs: Any, grid: tuple[int, ...]) -> IndexLayout | None:
    if type(codecs) is not list or len(codecs) != 1:
        return None
    name, config = named(codecs[0], "codec")
    if name != "sharding_indexed":
        return None
    subset(config, {"chunk_shape", "codecs", "index_codecs", "index_location"}, name)
    chunks = positive_ints(config.get("chunk_shape"), "inner chunk shape")
    if len(chunks) != len(grid) or any(whole % part for whole, part in zip(grid, chunks, strict=True)):
        raise UnusualError(f"inner chunk shape {list(chunks)}")
    index_codecs = [named(codec, "index codec") for codec in _listed(config.get("index_codecs"))]
    if index_codecs not in (
        [("bytes", {"endian": "little"})],
        [("bytes", {"endian": "little"}), ("crc32c", {})],
    ):
        return None
    location = config.get("index_location", "end")
    if location not in ("start", "end"):
        return None
    return IndexLayout(
        chunks_per_shard=tuple(whole // part for whole, part in zip(grid, chunks, strict=True)),
        at_end=location == "end",
        checked=len(index_codecs) == 2,
    )


def _why_no_index(codecs: list[Any]) -> str:
    if len(codecs) > 1:
        return f"{_name(codecs[1])} after sharding"
    return "a shard index of another kind"


def _chain(codecs: Any, dtype: DType) -> _Kind:
    """Kind of a chain [bytes] or [bytes, compressor]."""
    parts = [named(codec, "codec") for codec in _listed(codecs)]
    names = [name for name, _ in parts]
    if names[:1] != ["bytes"]:
        raise UnusualError(
            "nested sharding" if names[:1] == ["sharding_indexed"] else " then ".join(names[:1]) or "none"
        )
    _check_bytes(parts[0][1], dtype)
    if len(parts) == 1:
        return "raw"
    if len(parts) > 2:
        raise UnusualError(" then ".join(names[1:]))
    return _v3_compressor(codecs[1])


def _check_bytes(config: dict[str, Any], dtype: DType) -> None:
    subset(config, {"endian"}, "bytes")
    endian = config.get("endian")
    if dtype.itemsize == 1 and endian in (None, "little", "big"):
        return
    if endian != "little":
        raise UnusualError("big-endian" if endian == "big" else f"bytes of endian {endian!r}")


def _compressor(config: Any) -> _Kind:
    if config is None:
        return "raw"
    if type(config) is not dict or type(config.get("id")) is not str:
        raise UnusualError(f"compressor {config!r}")
    rest = {key: value for key, value in config.items() if key != "id"}
    return _numcodec(config["id"], rest)


def _v3_compressor(codec: dict[str, Any]) -> _Kind:
    name, config = named(codec, "codec")
    if "configuration" not in codec and name in _COMPRESSORS:
        raise UnusualError(f"{name} without a configuration")
    if name == "zstd":
        return _zstd(config)
    if name == "blosc":
        return _blosc(config, _SHUFFLES)
    if name.startswith("numcodecs."):
        return _numcodec(name.removeprefix("numcodecs."), config)
    raise UnusualError(name)


def _numcodec(name: str, config: dict[str, Any]) -> _Kind:
    """Kind of a codec of numcodecs: the compressors of version 2, which version 3 knows with a prefix."""
    if name == "zstd":
        return _zstd(config)
    if name == "blosc":
        return _blosc(config, {-1, 0, 1, 2})
    if name == "lz4":
        return _lz4(config)
    raise UnusualError(name)


def _zstd(config: dict[str, Any]) -> _Kind:
    subset(config, {"level", "checksum"}, "zstd")
    level, checksum = config.get("level", 0), config.get("checksum", False)
    if not is_int(level) or level > 22 or type(checksum) is not bool:
        raise UnusualError(f"zstd with {config!r}")
    return "zstd"


def _blosc(config: dict[str, Any], shuffles: set[Any]) -> _Kind:
    subset(config, {"typesize", "cname", "clevel", "shuffle", "blocksize"}, "blosc")
    if str(config.get("cname")) not in _BLOSC_COMPRESSORS:
        raise UnusualError(f"blosc with {config.get('cname')}")
    typesize, blocksize = config.get("typesize", 1), config.get("blocksize", 0)
    numbers = (typesize, blocksize, config.get("clevel"))
    shuffle = config.get("shuffle", 1 if 1 in shuffles else "shuffle")
    if not all(is_int(number) for number in numbers) or type(shuffle) not in {int, str} or shuffle not in shuffles:
        raise UnusualError(f"blosc with {config!r}")
    if typesize < 1 or blocksize < 0 or not 0 <= config["clevel"] <= 9:
        raise UnusualError(f"blosc with {config!r}")
    return "blosc"


def _lz4(config: dict[str, Any]) -> _Kind:
    subset(config, {"acceleration"}, "lz4")
    if not is_int(config.get("acceleration", 1)):
        raise UnusualError(f"lz4 with {config!r}")
    return "lz4"


def _name(codec: Any) -> Any:
    return codec.get("name") if type(codec) is dict else codec


def _listed(codecs: Any) -> list[Any]:
    if type(codecs) is not list or not codecs:
        raise UnusualError(f"codecs {codecs!r}")
    return codecs


def _ids(filters: Any) -> str:
    if type(filters) is not list:
        return repr(filters)
    return ", ".join(str(part.get("id")) if type(part) is dict else repr(part) for part in filters)
