"""Arrays opened with zarr-python, in any store: their metadata, and the store to read from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.data.store.meta import ArrayMeta, ChunkCodec, read_meta
from rankwise.data.store.meta.nodes import Node, node_of, v2_node
from rankwise.data.store.meta.parser import array_of

if TYPE_CHECKING:
    import zarr


class AdoptedArrays:
    """Arrays in stores that only zarr-python can read: memory, ZIP files, any file system of fsspec.

    They are sent to other processes in the same way as zarr-python's arrays. Thread-safe.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def adopt(self, array: zarr.Array[Any]) -> ArrayMeta:
        """Return the metadata of an array; keep the array, unless it lies in a folder, which needs no store object.

        Raises:
            DataError: the array cannot form batches, or its metadata are invalid.
        """
        from zarr.storage import LocalStore

        if type(array.store) is LocalStore:  # a subclass may do more than read files
            return read_meta(Path(array.store.root) / array.path)
        place = self._keep(array)
        codec = ChunkCodec(kind="zarr", why=f"a {type(array.store).__name__}")
        return replace(array_of(_node(array, place)), codec=codec, index=None)

    def get(self, place: str) -> zarr.Array[Any] | None:
        """Return the array at a place, None for one that was not adopted."""
        return self._arrays.get(place)

    def stored_bytes(self, place: str, key: str) -> int:
        """Return the size of a file of an adopted array, -1 if it does not exist.

        Args:
            place: of the array.
            key: of the file, relative to the array.
        """
        from zarr.core.sync import sync

        array = self._arrays[place]
        try:
            return int(sync(array.store.getsize("/".join(part for part in (array.path, key) if part))))
        except (FileNotFoundError, KeyError):
            return -1

    def _keep(self, array: zarr.Array[Any]) -> str:
        """Return a place that no other array has. It contains "://", so no code looks for files there."""
        place = name = f"zarr-{array.store_path}".rstrip("/") if "://" in str(array.store_path) else "zarr://array"
        number = 1
        while self._arrays.setdefault(place, array) is not array:
            number += 1
            place = f"{name}#{number}"
        return place


def _node(array: zarr.Array[Any], place: str) -> Node:
    from zarr.core.buffer import default_buffer_prototype

    files = array.metadata.to_buffer_dict(default_buffer_prototype())
    documents: Mapping[str, Any] = {name: json.loads(content.to_bytes()) for name, content in files.items()}
    if "zarr.json" in documents:
        return node_of(place, documents["zarr.json"])
    return v2_node(place, ".zarray", documents[".zarray"], documents.get(".zattrs", {}))
