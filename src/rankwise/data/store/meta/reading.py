"""From a path to an `ArrayMeta`."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np

from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec, KeyEncoding
from rankwise.data.store.opening import open_array
from rankwise.data.store.shard import IndexLayout

__all__ = ["read_meta"]


def read_meta(uri: str | os.PathLike[str]) -> ArrayMeta:
    """Return what the metadata of one array say.

    Raises:
        DataError: there is no array.
    """
    array = open_array(uri)._array  # noqa: SLF001
    document: dict[str, Any] = json.loads(json.dumps(array.metadata.to_dict(), default=str))
    dtype = np.dtype(array.dtype).newbyteorder("=")
    return ArrayMeta(
        place=str(uri),
        zarr_format=array.metadata.zarr_format,
        shape=array.shape,
        chunks=array.chunks,
        files=array.shards or array.chunks,
        dtype=dtype,
        fill_value=dtype.type(0) if array.fill_value is None else dtype.type(array.fill_value),
        codec=ChunkCodec(kind="zarr", why="not looked at"),
        keys=KeyEncoding(prefix="c" if array.metadata.zarr_format == 3 else "", separator="/"),
        index=IndexLayout.from_metadata(array.metadata.to_dict()) if array.metadata.zarr_format == 3 else None,
        dimension_names=(None,) * len(array.shape),
        attributes=json.loads(json.dumps(dict(array.attrs))),
        document=document,
        fingerprint=hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16],
    )
