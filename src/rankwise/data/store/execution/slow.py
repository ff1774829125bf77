"""Chunks that only zarr-python decodes: any codec, filter, order and byte order."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.store.adoption import AdoptedArrays
from rankwise.data.store.files import ArrayCheck
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.remote import RemoteFiles
from rankwise.data.store.zarr_python import plain_codecs
from rankwise.errors import DataError

__all__ = ["SlowArrays"]

_MOST = 1024


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

    def chunk(self, serial: int, array: ArrayMeta, coords: tuple[int, ...]) -> NDArray:
        """Return one decoded chunk, in native byte order; cropped at the array's edges.

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
            return np.asarray(self._open(serial, array)[region]).astype(array.dtype, copy=False)
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
