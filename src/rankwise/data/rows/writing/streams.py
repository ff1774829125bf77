"""`ArrayStream`: an array on disk that grows by pieces, written shard by shard."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.contract import DType, NDArray
from rankwise.data.store import load_zarr

__all__ = ["ArrayStream", "create_array"]


def create_array(
    group: Any,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: DType,
    chunk: int,
    shard: int,
    compressors: Any,
    attributes: dict[str, Any] | None = None,
) -> Any:
    """Create an array that is cut along its first axis only.

    Args:
        group: Zarr v3 group that will hold it.
        name: its name there.
        shape: its whole shape.
        dtype: dtype of its elements.
        chunk: extent of a chunk along the first axis.
        shard: extent of a shard along the first axis, rounded to whole chunks.
        compressors: codecs of Zarr.
        attributes: its attributes.
    """
    chunk = max(1, min(chunk, shape[0]))
    shard = max(chunk, min(shard, shape[0]) // chunk * chunk)
    inner = tuple(max(1, extent) for extent in shape[1:])
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=(chunk, *inner),
        shards=None if 0 in shape else (shard, *inner),
        compressors=compressors,
        attributes=attributes or {},
    )


class ArrayStream:
    """An array whose rows come in pieces of any length; every shard is encoded once, when it is full.

    Args:
        array: what `create_array` made.
        keep_zeros: store chunks of nothing but zeros, too: in a CSR matrix one that is not there is taken for lost.
    """

    def __init__(self, array: Any, *, keep_zeros: bool = False) -> None:
        zarr = load_zarr()
        with zarr.config.set({"array.write_empty_chunks": keep_zeros}):
            self._array = zarr.open_array(array.store_path, mode="r+")
        self._shard = (array.shards or array.chunks)[0]
        self._held: list[NDArray] = []
        self._num_held = 0
        self._written = 0

    def append(self, values: NDArray) -> None:
        """Add rows at the end."""
        while len(values):
            part = values[: self._shard - self._num_held]
            self._held.append(np.asarray(part, dtype=self._array.dtype))
            self._num_held += len(part)
            values = values[len(part) :]
            if self._num_held == self._shard:
                self._flush()

    def close(self) -> None:
        """Write what is left.

        Raises:
            RuntimeError: other than the announced number of rows came.
        """
        if self._num_held:
            self._flush()
        if self._written != self._array.shape[0]:
            raise RuntimeError(f"{self._array.path} was to get {self._array.shape[0]} rows, it got {self._written}")

    def _flush(self) -> None:
        end = self._written + self._num_held
        self._array[self._written : end] = np.concatenate(self._held)
        self._held, self._num_held, self._written = [], 0, end
