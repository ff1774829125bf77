"""Arrays in stores of zarr-python, and chunks that only it decodes, one by one: any codec, filter, and order."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.store.execution.failures import REPLACED, ChunkFailure
from rankwise.data.store.files.facts import ArrayCheck, FileFacts
from rankwise.data.store.files.handles import local_identity
from rankwise.data.store.meta.nodes import node_of, v2_node
from rankwise.data.store.meta.parser import array_of
from rankwise.data.store.meta.tree import read_meta
from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec
from rankwise.data.store.remote import RemoteFiles
from rankwise.data.store.zarr_python import plain_codecs
from rankwise.errors import DataError

if TYPE_CHECKING:
    import zarr

_MOST = 1024


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
        from zarr.core.buffer import default_buffer_prototype
        from zarr.storage import LocalStore

        if type(array.store) is LocalStore:  # a subclass may do more than read files
            return read_meta(Path(array.store.root) / array.path)
        place = self._keep(array)
        files = array.metadata.to_buffer_dict(default_buffer_prototype())
        documents: Mapping[str, Any] = {name: json.loads(content.to_bytes()) for name, content in files.items()}
        if "zarr.json" in documents:
            node = node_of(place, documents["zarr.json"])
        else:
            node = v2_node(place, ".zarray", documents[".zarray"], documents.get(".zattrs", {}))
        codec = ChunkCodec(kind="zarr", why=f"a {type(array.store).__name__}")
        return replace(array_of(node), codec=codec, index=None)

    def get(self, place: str) -> zarr.Array[Any] | None:
        """Return the array at a place, None for one that was not adopted."""
        return self._arrays.get(place)

    def stored_bytes(self, place: str, key: str) -> int:
        """Return the size of a file, -1 if it does not exist; `key` is relative to the array at `place`."""
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


class SlowArrays:
    """The last 1,024 arrays, opened with zarr-python; thread-safe.

    They use zarr-python's own codecs, even if another pipeline is configured, which may not support these codecs. Only
    the contents of shards go through the configured pipeline, because zarr-python uses it there.

    Args:
        remote: the reader of object stores.
        adopted: arrays in zarr-python's own stores.
        array_check: knows the error of a whole array behind a URL; asked when one of its objects is missing.
    """

    def __init__(self, remote: RemoteFiles, adopted: AdoptedArrays, array_check: ArrayCheck) -> None:
        self._remote = remote
        self._adopted = adopted
        self._array_check = array_check
        self._opened: OrderedDict[int, Any] = OrderedDict()
        # Also held while an array is opened: the crew's threads meet its first chunks together, and each would read its
        # documents. `plain_codecs` takes its lock inside; it never calls back here.
        self._lock = threading.Lock()

    def read(self, serial: int, array: ArrayMeta, coords: tuple[int, ...], facts: FileFacts) -> NDArray | ChunkFailure:
        """Return what `chunk` does, or why it could not be read; `facts` are those of its file."""
        try:
            values = self.chunk(serial, array, coords)
        except MemoryError as error:
            return ChunkFailure("cannot be decoded: there is not enough memory", damage=False, cause=error)
        except DataError as error:
            return ChunkFailure(str(error).rstrip("."), damage=bool(getattr(error, "damage", True)), cause=error)
        except OSError as error:
            return ChunkFailure(f"cannot be read: {error}", damage=False, cause=error)
        # zarr-python may have opened another file than planned; it reads a missing one as fill values
        same = facts.is_remote or local_identity(facts.path) == facts.identity
        return values if same else ChunkFailure(REPLACED)

    def chunk(self, serial: int, array: ArrayMeta, coords: tuple[int, ...]) -> NDArray:
        """Return one decoded chunk, C-contiguous, in native byte order; beyond the array's edges it is undefined.

        Raises:
            DataError: it cannot be decoded.
            OSError: it cannot be read.
            MemoryError: there is not enough memory to decode it.
        """
        region = tuple(
            slice(at * extent, min((at + 1) * extent, size))
            for at, extent, size in zip(coords, array.chunks, array.shape, strict=True)
        )
        # Opened arrays are read without the lock: zarr-python's arrays and stores allow reads from many threads.
        try:
            values = np.asarray(self._open(serial, array)[region])
            if values.shape != array.chunks:
                inside, values = values, np.empty(array.chunks, dtype=array.dtype)
                values[tuple(map(slice, inside.shape))] = inside
            return np.ascontiguousarray(values, dtype=array.dtype)
        except (MemoryError, DataError):  # a DataError comes from an object store, and is complete
            raise
        except Exception as error:  # any error of a codec, possibly an OSError without a number
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(f"cannot be decoded by zarr-python: {type(error).__name__}: {error}") from error

    def _open(self, serial: int, array: ArrayMeta) -> Any:
        import zarr

        with self._lock:
            if serial in self._opened:
                self._opened.move_to_end(serial)
                return self._opened[serial]
            with plain_codecs(zarr):
                version: Any = array.zarr_format
                opened = zarr.open_array(self._store(array), mode="r", zarr_format=version)
            _check_same(array, opened)  # before it is kept: if it is refused, the next chunk checks again
            self._opened[serial] = opened
            while len(self._opened) > _MOST:
                self._opened.popitem(last=False)
            return opened

    def _store(self, array: ArrayMeta) -> Any:
        from zarr.storage import LocalStore, StorePath

        from rankwise.data.store.execution.checked_reads import CheckedStore

        adopted = self._adopted.get(array.place)
        if adopted is not None:
            return StorePath(CheckedStore(adopted.store), adopted.path)
        if array.is_remote:
            return CheckedStore(self._remote.zarr_store(array.place), trouble=partial(self._array_check.trouble, array))
        return CheckedStore(LocalStore(array.place, read_only=True))


def _check_same(array: ArrayMeta, opened: Any) -> None:
    dtype = np.dtype(opened.dtype).newbyteorder("=")
    chunks = tuple(max(1, extent) for extent in opened.chunks)
    if (tuple(opened.shape), chunks, dtype) != (array.shape, array.chunks, array.dtype):
        raise DataError(
            f"belongs to an array that was rewritten after its metadata were read: it had the shape "
            f"{list(array.shape)}, chunks {list(array.chunks)} and dtype {array.dtype}, now it has "
            f"{list(opened.shape)}, {list(opened.chunks)} and {dtype}; reopen the store"
        )
