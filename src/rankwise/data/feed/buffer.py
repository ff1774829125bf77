"""Memory for one batch, reused from batch to batch, and the pool that hands it out."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import BoolArray, FieldSpec, NDArray
from rankwise.data.feed.allocating import allocate_bytes
from rankwise.data.feed.done import Done
from rankwise.errors import ConfigError

__all__ = ["BufferPool", "HostBuffer", "check_limit", "kept_rows"]


class HostBuffer:
    """Implements `BatchBuffer` in host memory, page-locked if asked for; grows to the largest batch it has held.

    Args:
        pinned: allocate page-locked memory through torch, for asynchronous copies to a CUDA device.
        limit_bytes: most bytes it may hold; None = any.
    """

    def __init__(self, *, pinned: bool = False, limit_bytes: int | None = None) -> None:
        self._pinned = pinned
        self._limit_bytes = limit_bytes
        self._memory: dict[str, NDArray] = {}
        self._views: dict[str, tuple[NDArray, ...]] = {}
        self.busy: Done | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return sum(memory.nbytes for memory in self._memory.values())

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Make room for `num_samples` samples of `specs`; what an earlier `reserve` gave is then void.

        Args:
            specs: fields and what a sample of each looks like.
            num_samples: length of the batch axis, may be 0.
            capacity: for each ragged field, the most values. Its column numbers and row pointers have one dtype, as
                torch wants them: int32 where the columns of a row fit, whatever the batch.

        Raises:
            ConfigError: a ragged field has no entry in `capacity`, or more values than its row pointers count, or the
                batch is larger than the buffer may be.
        """
        if self.busy is not None:
            self.busy.synchronize()
            self.busy = None
        self._views = {name: self._field(name, spec, num_samples, capacity) for name, spec in specs.items()}

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field, batch axis first: one if dense; data, indices, indptr if ragged.

        Raises:
            KeyError: the field was not reserved.
        """
        return self._views[field]

    def keep(self, kept: BoolArray) -> None:
        """Drop rows of every field: the kept ones move up, in their order.

        Args:
            kept: bool[B], which rows stay.
        """
        self._views = {name: kept_rows(arrays, kept) for name, arrays in self._views.items()}

    def _field(self, name: str, spec: FieldSpec, num_samples: int, capacity: Mapping[str, int]) -> tuple[NDArray, ...]:
        if not spec.ragged:
            return (self._room(name, (num_samples, *spec.shape), spec.dtype),)
        if name not in capacity:
            raise ConfigError(f"the ragged field {name!r} has no capacity: its plan must say how many values it holds")
        values, index = capacity[name], spec.index_dtype
        if values > np.iinfo(index).max:
            raise ConfigError(
                f"the ragged field {name!r} has {values} values in one batch, {index} counts up to "
                f"{np.iinfo(index).max}: take a smaller micro_batch"
            )
        return (
            self._room(f"{name}/data", (values,), spec.dtype),
            self._room(f"{name}/indices", (values,), index),
            self._room(f"{name}/indptr", (num_samples + 1,), index),
        )

    def _room(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        """A view of `shape` at the start of the memory that is kept under `name`."""
        wanted = math.prod(shape) * dtype.itemsize
        if name not in self._memory or self._memory[name].nbytes < wanted:
            self._memory.pop(name, None)
            check_limit(self.num_bytes + wanted, self._limit_bytes)
            self._memory[name] = allocate_bytes(wanted, pinned=self._pinned)
        return self._memory[name][:wanted].view(dtype).reshape(shape)


def check_limit(num_bytes: int, limit_bytes: int | None) -> None:
    """Refuse a batch that is too large.

    Args:
        num_bytes: what it takes.
        limit_bytes: what it may take; None = anything.

    Raises:
        ConfigError: it takes more.
    """
    if limit_bytes is not None and num_bytes > limit_bytes:
        raise ConfigError(
            f"a batch takes at least {num_bytes} bytes, a batch buffer may take {limit_bytes}: allow more memory, or "
            "take a smaller batch size or depth; transform= or a stage of a curriculum may have made the samples larger"
        )


def kept_rows(arrays: tuple[NDArray, ...], kept: BoolArray) -> tuple[NDArray, ...]:
    """Return the arrays of a field with some of its rows, at the beginning of the same memory.

    Args:
        arrays: one if dense; data, indices and row pointers, which begin at 0, if ragged.
        kept: bool[B], which rows stay.
    """
    if len(arrays) == 1:
        return (_moved_up(arrays[0], kept),)
    data, indices, indptr = arrays
    lengths = np.diff(indptr)
    values = np.repeat(kept, lengths)
    bounds = indptr[: int(kept.sum()) + 1]
    bounds[1:] = np.cumsum(lengths[kept])
    end = int(indptr[0]) + len(values)
    return _moved_up(data[:end], values), _moved_up(indices[:end], values), bounds


def _moved_up(array: NDArray, kept: BoolArray) -> NDArray:
    """The kept rows at the beginning of the same memory."""
    count = int(kept.sum())
    if array.ndim == 1:
        array[:count] = array[kept]
        return array[:count]
    # row after row: a selection as a whole would need as much memory again
    for to, row in enumerate(np.flatnonzero(kept).tolist()):
        if to != row:
            array[to] = array[row]
    return array[:count]


class BufferPool:
    """Hands out buffers, at most `limit` at a time, and waits for one to come back when all are out. Thread-safe.

    Args:
        pinned: see `HostBuffer`.
        limit_bytes: see `HostBuffer`; of each buffer.
        spare: buffers of an earlier pool to begin with.
    """

    def __init__(
        self, *, pinned: bool = False, limit_bytes: int | None = None, spare: Sequence[HostBuffer] = ()
    ) -> None:
        self._pinned = pinned
        self.limit_bytes = limit_bytes
        self._free = list(spare)
        self._num_out = 0
        self._closed = False
        self._changed = threading.Condition()
        self._pid = os.getpid()

    @property
    def num_out(self) -> int:
        """Buffers that are out now."""
        return self._num_out

    def acquire(self, limit: int) -> HostBuffer | None:
        """Return a free buffer, or a new one while fewer than `limit` are out; waits otherwise. None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._num_out < limit)
            if self._closed:
                return None
            self._num_out += 1
            return self._free.pop() if self._free else HostBuffer(pinned=self._pinned, limit_bytes=self.limit_bytes)

    def give_back(self, buffer: HostBuffer) -> None:
        """Take a buffer back; its memory is used again."""
        if self._pid != os.getpid():
            return  # in a forked process nobody fills it again, and the lock may be held for ever
        with self._changed:
            self._num_out -= 1
            self._free.append(buffer)
            self._changed.notify_all()

    def close(self) -> None:
        """Let everybody who waits go, empty-handed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self) -> list[HostBuffer]:
        """Return the buffers that are here, for a later pool."""
        with self._changed:
            free, self._free = self._free, []
            return free
