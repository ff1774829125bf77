"""Turns the documents of one array into an `ArrayMeta`, cached until they change; zarr-python reads unusual ones."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import DType
from rankwise.data.store.files.handles import local_identity
from rankwise.data.store.meta.codecs import (
    CORE,
    Coding,
    UnreadableError,
    UnsupportedError,
    fill_scalar,
    index_layout,
    is_core,
    named,
    positive_ints,
    subset,
    v2_coding,
    v2_dtype,
    v3_coding,
)
from rankwise.data.store.meta.nodes import Node
from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec, KeyEncoding
from rankwise.data.store.zarr_python import open_document
from rankwise.errors import DataError, MissingExtraError


class InterpretedArray(NamedTuple):
    """What a document says, to us or to zarr-python; for the fields see `ArrayMeta`.

    Read by us, `chunks` are those of the chunk grid, even in shards.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    files: tuple[int, ...]
    dtype: DType
    fill_value: Any
    keys: KeyEncoding


@lru_cache(maxsize=512)
def interpret(text: str, *, zarr_format: int) -> InterpretedArray:
    """Return zarr-python's interpretation of the text of a zarr.json or .zarray.

    Raises:
        UnreadableError: it rejects the document, or its elements cannot form batches.
        MissingExtraError: zarr is not installed.
    """
    try:
        return _facts(open_document(text, zarr_format=zarr_format), zarr_format)
    except (MemoryError, UnreadableError, MissingExtraError):
        raise
    except Exception as error:  # any error of a codec, dtype or grid
        raise UnreadableError(f"{type(error).__name__}: {str(error).rstrip('.')}") from error


def _facts(array: Any, zarr_format: int) -> InterpretedArray:
    stored = np.dtype(array.dtype)
    if stored.hasobject or stored.kind in "OT":
        raise UnreadableError(
            f"it has dtype {array.dtype}: variable-length strings and objects cannot form a batch; "
            "store numbers (or codes and a list of categories)"
        )
    dtype = stored.newbyteorder("=")
    fill = np.zeros((), dtype) if array.fill_value is None else np.asarray(array.fill_value)
    if fill.ndim:  # zarr-python would read a list as booleans
        raise UnreadableError(f"its fill value {fill.tolist()} is not one element of {dtype}")
    return InterpretedArray(
        shape=tuple(array.shape),
        chunks=tuple(array.chunks),
        files=tuple(array.shards or array.chunks),
        dtype=dtype,
        fill_value=fill.astype(dtype)[()],
        keys=_keys(array.metadata, zarr_format),
    )


def _keys(metadata: Any, zarr_format: int) -> KeyEncoding:
    if zarr_format == 2:
        return KeyEncoding(prefix="", separator=metadata.dimension_separator)
    encoding = metadata.chunk_key_encoding.to_dict()
    if encoding["name"] not in ("default", "v2"):
        raise UnreadableError(f"chunk key encoding {encoding['name']!r} is unknown")
    separator = encoding["configuration"]["separator"]
    return KeyEncoding(prefix="c" if encoding["name"] == "default" else "", separator=separator)


_CONTENT_KEYS = {
    2: ("shape", "chunks", "dtype", "fill_value", "order", "compressor", "filters", "dimension_separator"),
    3: ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
}
_V3_KEYS = {*_CONTENT_KEYS[3], "zarr_format", "node_type", "attributes", "dimension_names", "storage_transformers"}
_LARGEST = 2**63 - 1


def parse_array(document: Mapping[str, Any], attributes: Mapping[str, Any], *, zarr_format: int) -> ArrayMeta:
    """Return the metadata of a parsed document, without a place.

    Raises:
        UnreadableError: zarr-python rejects it, too, or such an array cannot form batches.
    """
    if zarr_format == 3:
        _refuse_extensions(document)
    try:
        found = _strict_v2(document) if zarr_format == 2 else _strict_v3(document)
        coding = _strict_coding(document, found, zarr_format)
    except UnsupportedError as unusual:
        bare = {key: value for key, value in document.items() if key != "attributes"}
        if bare.get("filters") == []:
            bare["filters"] = None  # equivalent, but zarr-python warns
        found = interpret(json.dumps(bare), zarr_format=zarr_format)
        coding = _coding(document, found, zarr_format, str(unusual))
    content = [document.get(key) for key in _CONTENT_KEYS[zarr_format]]
    meta = ArrayMeta(
        place="",
        zarr_format=zarr_format,
        shape=found.shape,
        chunks=coding.chunks,
        files=found.files,
        dtype=found.dtype,
        fill_value=found.fill_value,
        codec=coding.codec,
        keys=found.keys,
        index=coding.shard_index,
        dimension_names=_dimension_names(document, attributes, zarr_format, len(found.shape)),
        attributes=attributes,
        document=document,
        fingerprint=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16],
    )
    return _checked(meta)


def _strict_v3(document: Mapping[str, Any]) -> InterpretedArray:
    if document.get("zarr_format") != 3 or document.get("node_type") != "array" or "fill_value" not in document:
        raise UnsupportedError("document")
    if document.get("storage_transformers") not in (None, []):
        raise UnsupportedError("storage transformers")
    shape = positive_ints(document.get("shape"), "shape", least=0)
    name = document.get("data_type")
    if type(name) is not str or name not in CORE:
        raise UnsupportedError(f"dtype {name!r}")
    dtype = CORE[name]
    grid = _grid(document.get("chunk_grid"), len(shape))
    fill_value = fill_scalar(dtype, document["fill_value"], zarr_format=3)
    return InterpretedArray(shape, grid, grid, dtype, fill_value, _key_encoding(document.get("chunk_key_encoding")))


def _strict_v2(document: Mapping[str, Any]) -> InterpretedArray:
    needed = {"shape", "chunks", "dtype", "fill_value", "order", "compressor", "filters"}
    if document.get("zarr_format") != 2 or not document.keys() >= needed or document["order"] not in ("C", "F"):
        raise UnsupportedError("document")
    shape = positive_ints(document["shape"], "shape", least=0)
    chunks = positive_ints(document["chunks"], "chunks")
    dtype, _ = v2_dtype(document["dtype"])
    if len(chunks) != len(shape):
        raise UnsupportedError("chunks")
    fill_value = fill_scalar(dtype, document["fill_value"], zarr_format=2)
    keys = KeyEncoding(prefix="", separator=_separator(document.get("dimension_separator", ".")))
    return InterpretedArray(shape, chunks, chunks, dtype, fill_value, keys)


def _strict_coding(document: Mapping[str, Any], found: InterpretedArray, zarr_format: int) -> Coding:
    if not is_core(found.dtype):
        raise UnsupportedError(f"dtype {found.dtype}")
    if zarr_format == 3:
        return v3_coding(document.get("codecs"), found.files, found.dtype)
    return v2_coding(document, found.chunks, big_endian=v2_dtype(document["dtype"])[1])


def _coding(document: Mapping[str, Any], found: InterpretedArray, zarr_format: int, why: str) -> Coding:
    """Return the coding of an unusual array: our codec is kept if only another part is unusual, else `why` names it."""
    try:
        coding = _strict_coding(document, found, zarr_format)
    except UnsupportedError as unusual:
        index = None
        with suppress(UnsupportedError):
            index = index_layout(document["codecs"] if zarr_format == 3 else None, found.files)
        codec = ChunkCodec(kind="zarr", why=str(unusual) if is_core(found.dtype) else why)
        return Coding(found.chunks, codec, index)
    if coding.chunks != found.chunks:
        raise UnreadableError(f"its chunks are {list(coding.chunks)} here but {list(found.chunks)} in zarr-python")
    return coding


def _grid(grid: Any, ndim: int) -> tuple[int, ...]:
    name, config = named(grid, "chunk grid")
    if name != "regular" or config.keys() != {"chunk_shape"}:
        raise UnsupportedError(f"chunk grid {name}")
    chunk_shape = positive_ints(config["chunk_shape"], "chunk shape")
    if len(chunk_shape) != ndim:
        raise UnsupportedError(f"chunk shape {list(chunk_shape)}")
    return chunk_shape


def _key_encoding(encoding: Any) -> KeyEncoding:
    name, config = named(encoding, "chunk key encoding")
    subset(config, {"separator"}, f"chunk key encoding {name}")
    if name not in {"default", "v2"}:
        raise UnsupportedError(f"chunk key encoding {name}")
    separator = _separator(config.get("separator", "/" if name == "default" else "."))
    return KeyEncoding(prefix="c" if name == "default" else "", separator=separator)


def _separator(value: Any) -> str:
    if value not in (".", "/"):
        raise UnsupportedError(f"separator {value!r}")
    return str(value)


def _dimension_names(
    document: Mapping[str, Any], attributes: Mapping[str, Any], zarr_format: int, ndim: int
) -> tuple[str | None, ...]:
    """Return the names of the axes; for version 2 from the attribute that xarray uses."""
    names = document.get("dimension_names") if zarr_format == 3 else attributes.get("_ARRAY_DIMENSIONS")
    if names is None:
        return (None,) * ndim
    fits = type(names) is list and len(names) == ndim and all(name is None or type(name) is str for name in names)
    if not fits and zarr_format == 3:
        raise UnreadableError(f"its dimension_names are {names!r}, expected a list of {ndim} names")
    return tuple(names) if fits else (None,) * ndim


def _refuse_extensions(document: Mapping[str, Any]) -> None:
    for key in sorted(document.keys() - _V3_KEYS):
        value = document[key]
        if type(value) is not dict or value.get("must_understand") is not False:
            raise UnreadableError(f"its metadata have the field {key!r}, an unknown extension that must be understood")
    if document.get("storage_transformers"):
        raise UnreadableError(f"its storage_transformers {document['storage_transformers']!r} are not supported")


def _checked(meta: ArrayMeta) -> ArrayMeta:
    if not meta.shape:
        raise UnreadableError("the array has no axis; boxes and samples need at least one")
    cuts = list(zip(meta.shape, meta.chunks, meta.files, strict=True))
    if any(extent > 0 and 0 in (chunk, file) for extent, chunk, file in cuts):
        raise UnreadableError(f"its chunks {list(meta.chunks)} in files of {list(meta.files)} cannot be empty")
    # along an axis without elements a chunk may be empty; 1 is equivalent
    chunks = tuple(max(1, chunk) for _, chunk, _ in cuts)
    files = tuple(max(file, chunk) for file, chunk in zip(meta.files, chunks, strict=True))
    num_chunks = math.prod(-(-extent // chunk) for extent, chunk in zip(meta.shape, chunks, strict=True))
    sizes = (*meta.shape, *files, num_chunks, math.prod(files) * meta.dtype.itemsize)
    if max(sizes) > _LARGEST:
        raise UnreadableError(f"its shape {list(meta.shape)} or chunks {list(files)} exceed any memory")
    return meta if (chunks, files) == (meta.chunks, meta.files) else replace(meta, chunks=chunks, files=files)


def array_of(node: Node) -> ArrayMeta:
    """Return the metadata of an array from its documents.

    Raises:
        DataError: they are not understood, or the array cannot form batches.
        MissingExtraError: they need zarr-python, which is not installed.
    """
    try:
        meta = parse_array(node.document, node.attributes, zarr_format=node.zarr_format)
    except UnreadableError as error:
        name = ".zarray" if node.zarr_format == 2 else "zarr.json"
        raise DataError(f"the array {node.place} cannot be read with its {name}: {error}") from error
    return replace(meta, place=node.place)


_FRESH_NS = 50_000_000  # file systems count time in ticks: a file may change twice within one and keep its stamp
_REMOTE_NS = 60 * 10**9  # remote documents cannot be checked for free, so cached ones expire
_Stamps = tuple[tuple[int, ...], ...]


class MetaCache:
    """Caches the last `capacity` arrays by place; thread-safe.

    The documents of a local array are checked each time (one stat call in version 3, three in version 2); a
    remote one is read again after a minute.
    """

    def __init__(self, capacity: int = 4096, clock: Callable[[], int] = time.time_ns) -> None:
        self._capacity = capacity
        self._clock = clock
        self._kept: OrderedDict[str, tuple[ArrayMeta, _Stamps, int]] = OrderedDict()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Make a new lock; for processes that are forked while threads run."""
        # entries may stay: each step of a change is atomic, and leaves them valid
        self._lock = threading.Lock()

    def get(self, place: str, read: Callable[[str], ArrayMeta]) -> ArrayMeta:
        """Return the metadata of an array, from memory if they are still valid."""
        with self._lock:  # not while documents are read: two threads may read the same ones, and keep equal results
            kept = self._kept.get(place)
        if kept is not None:
            meta, stamps, read_at = kept
            if self._clock() - read_at < _REMOTE_NS if "://" in place else _stamps(place) == stamps:
                return meta
        # Stamps from before and after: if another process writes in between, the result is returned but not kept.
        began, before = self._clock(), _stamps(place)
        meta = read(place)
        if before == _stamps(place) and all(not stamp or stamp[-1] < began - _FRESH_NS for stamp in before):
            with self._lock:
                self._kept[place] = meta, before, began
                self._kept.move_to_end(place)
                if len(self._kept) > self._capacity:
                    self._kept.popitem(last=False)
        return meta


def _stamps(place: str) -> _Stamps:
    """Return the stamps of the documents that matter; only zarr.json if it exists."""
    if "://" in place:
        return ()
    first = local_identity(f"{place}/zarr.json")
    return (first,) if first else (first, *(local_identity(f"{place}/{name}") for name in (".zarray", ".zattrs")))
