"""zarr-python's opinion of a document that we do not know word for word."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.store.codec_pipeline import plain_codecs
from rankwise.data.store.extras import load_zarr
from rankwise.data.store.meta.strict import UnreadableError
from rankwise.data.store.meta.values import KeyEncoding

__all__ = ["Vetted", "vet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetted:
    """What zarr-python reads out of a document.

    Attributes:
        shape: shape of the array.
        chunks: shape of an inner chunk.
        files: shape of what one file holds.
        dtype: dtype in native byte order.
        fill_value: as a value of `dtype`.
        keys: how files are named.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    files: tuple[int, ...]
    dtype: DType
    fill_value: Any
    keys: KeyEncoding


@lru_cache(maxsize=512)
def vet(text: str, *, zarr_format: int) -> Vetted:
    """Return what zarr-python says about the text of a zarr.json or .zarray.

    Raises:
        UnreadableError: it refuses the document, or batches cannot hold the elements.
        MissingExtraError: zarr is not installed.
    """
    zarr = load_zarr()
    try:
        with plain_codecs(zarr):
            array = zarr.open_array(_memory_store(text, zarr_format), mode="r", zarr_format=zarr_format)
            return _facts(array, zarr_format)
    except (MemoryError, UnreadableError):
        raise
    except Exception as error:  # whatever a codec, a dtype or a grid raises
        raise UnreadableError(f"{type(error).__name__}: {str(error).rstrip('.')}") from error


def _memory_store(text: str, zarr_format: int) -> Any:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import MemoryStore

    name = ".zarray" if zarr_format == 2 else "zarr.json"
    return MemoryStore({name: default_buffer_prototype().buffer.from_bytes(text.encode())})


def _facts(array: Any, zarr_format: int) -> Vetted:
    stored = np.dtype(array.dtype)
    if stored.hasobject or stored.kind in "OT":
        raise UnreadableError(
            f"it has dtype {array.dtype}: strings of variable length and objects cannot form a batch; "
            "store numbers (or codes and a list of categories)"
        )
    dtype = stored.newbyteorder("=")
    return Vetted(
        shape=tuple(array.shape),
        chunks=tuple(array.chunks),
        files=tuple(array.shards or array.chunks),
        dtype=dtype,
        fill_value=_fill(array.fill_value, dtype),
        keys=_keys(array.metadata, zarr_format),
    )


def _fill(value: Any, dtype: DType) -> Any:
    one = np.zeros((), dtype) if value is None else np.asarray(value)
    if one.ndim:  # zarr-python takes a list for truth values
        raise UnreadableError(f"its fill value {one.tolist()} is not one element of {dtype}")
    return one.astype(dtype)[()]


def _keys(metadata: Any, zarr_format: int) -> KeyEncoding:
    if zarr_format == 2:
        return KeyEncoding(prefix="", separator=metadata.dimension_separator)
    encoding = metadata.chunk_key_encoding.to_dict()
    if encoding["name"] not in ("default", "v2"):
        raise UnreadableError(f"chunk keys of the encoding {encoding['name']!r} are not known")
    separator = encoding["configuration"]["separator"]
    return KeyEncoding(prefix="c" if encoding["name"] == "default" else "", separator=separator)
