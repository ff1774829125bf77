"""Chunks that only zarr-python decodes: any codec, filter, order and byte order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError

__all__ = ["SlowArrays"]

_PIPELINE = "zarr.core.codec_pipeline.BatchedCodecPipeline"


class SlowArrays:
    """Arrays as zarr-python opens them, each once; thread-safe.

    They always use zarr-python's own codecs, even where another pipeline is configured: what ends here is what
    others may not know.
    """

    def __init__(self, remote: Callable[[], RemoteFiles]) -> None:
        self._remote = remote
        self._opened: dict[int, Any] = {}
        self._lock = threading.Lock()

    def chunk(self, serial: int, array: ArrayMeta, coords: tuple[int, ...]) -> NDArray:
        """Return one chunk, decoded, in native byte order; cut at the array's edges.

        Raises:
            DataError: it cannot be decoded.
            OSError: it cannot be read.
        """
        opened = self._open(serial, array)
        region = tuple(
            slice(at * extent, min((at + 1) * extent, size))
            for at, extent, size in zip(coords, array.chunks, array.shape, strict=True)
        )
        try:
            return np.asarray(opened[region]).astype(array.dtype, copy=False)
        except (MemoryError, DataError):  # the second comes from an object store, and says already what it is
            raise
        except Exception as error:  # whatever a codec raises, which may be an OSError without a number
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(f"cannot be decoded by zarr-python: {type(error).__name__}: {error}") from error

    def _open(self, serial: int, array: ArrayMeta) -> Any:
        import zarr

        with self._lock:
            if serial not in self._opened:
                with zarr.config.set({"codec_pipeline.path": _PIPELINE}):
                    self._opened[serial] = zarr.open_array(**self._where(array), mode="r")
            return self._opened[serial]

    def _where(self, array: ArrayMeta) -> dict[str, Any]:
        if not array.is_remote:
            return {"store": array.place}
        return {"store": self._remote().zarr_store(array.place)}
