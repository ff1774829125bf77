"""`HostBuffer`: the memory of a batch, of its own or a part of another buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rankwise.data.contract import BoolArray, DType, FieldSpec, NDArray
from rankwise.data.feed.memory.lease import Lease
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.errors import ConfigError


class HostBuffer:
    """Implements `BatchBuffer` in memory of a pool, which is refilled only when no view of its arrays is left.

    Each array, and whatever shares its memory, keeps the memory alive. So does the buffer, until it is reserved again
    or given back.

    Args:
        memory: the pool to allocate from; None = a new one.
        lease: ends with the last of the arrays; None = a lease that no reader counts.
        limit_bytes: most bytes it may hold; None = any.
        spares: number of free batches whose memory the pool keeps.

    Attributes:
        lease: its lease.
    """

    def __init__(
        self,
        memory: MemoryPool | None = None,
        *,
        lease: Lease | None = None,
        limit_bytes: int | None = None,
        spares: int = 1,
    ) -> None:
        self._memory = MemoryPool() if memory is None else memory
        self.lease = Lease() if lease is None else lease
        self._limit_bytes, self._spares = limit_bytes, spares
        self._views: dict[str, tuple[NDArray, ...]] = {}
        self._num_bytes = self._num_pieces = 0
        self._is_left = False

    @property
    def num_bytes(self) -> int:
        """Bytes reserved, or bytes of this part."""
        return self._num_bytes

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Make room for `num_samples` samples of `specs`. Arrays of an earlier `reserve` stay valid while in use.

        Args:
            specs: fields and what a sample of each looks like.
            num_samples: length of the batch axis, may be 0.
            capacity: for each ragged field, the largest number of values. Column numbers and row pointers get one
                dtype, which torch requires: int32 if the column count fits, whatever the size of the batch.

        Raises:
            ConfigError: a ragged field has no entry in `capacity`, or more values than its row pointers can count, or
                the batch is larger than the limit.
        """
        self._views, self._num_bytes, self._num_pieces = {}, 0, 0
        views: dict[str, tuple[NDArray, ...]] = {}
        for name, spec in specs.items():
            if not spec.ragged:
                shape = (num_samples, *spec.shape)
                views[name] = (self._room(math.prod(shape), spec.dtype, exact=True).reshape(shape),)
                continue
            if name not in capacity:
                raise ConfigError(f"the ragged field {name!r} has no capacity: its plan must give the number of values")
            values, index = capacity[name], spec.index_dtype
            if values > np.iinfo(index).max:
                raise ConfigError(
                    f"the ragged field {name!r} has {values} values in one batch, but {index} counts up to "
                    f"{np.iinfo(index).max}: use a smaller micro_batch"
                )
            data, indices = self._room(values, spec.dtype), self._room(values, index)
            views[name] = data, indices, self._room(num_samples + 1, index, exact=True)
        self._views = views
        self._memory.expect(self._spares, num_pieces=self._num_pieces, num_bytes=self._num_bytes)

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field, batch axis first: one if dense; data, indices, indptr if ragged.

        Raises:
            KeyError: the field was not reserved.
        """
        return self._views[field]

    def keep(self, kept: BoolArray) -> None:
        """Drop rows of every field: the kept rows move up, in their order.

        Args:
            kept: bool[B], which rows stay.
        """
        self._views = {name: _kept_rows(arrays, kept) for name, arrays in self._views.items()}

    def part(self, first: int, last: int, *, limit_bytes: int | None = None) -> HostBuffer:
        """Return the samples ``first:last`` as a buffer; the memory is refilled when this one and all parts are gone.

        Args:
            first: the first of them.
            last: the index after the last.
            limit_bytes: most bytes of the part; None = any.

        Raises:
            ConfigError: the part is larger than `limit_bytes`.
        """
        made = HostBuffer(self._memory, lease=self.lease)
        for name, arrays in self._views.items():
            if len(arrays) == 1:
                made._views[name] = (arrays[0][first:last],)
                continue
            data, indices, indptr = arrays
            values = slice(int(indptr[first]), int(indptr[last]))
            # views, except row pointers, which are rebased to 0
            made._views[name] = data[values], indices[values], indptr[first : last + 1] - indptr[first]
        made._num_bytes = sum(array.nbytes for arrays in made._views.values() for array in arrays)
        if limit_bytes is not None and made._num_bytes > limit_bytes:
            raise self._too_large(made._num_bytes, limit_bytes)
        self.lease.hold()
        return made

    def copy_to(self, into: HostBuffer, specs: Mapping[str, FieldSpec], num_samples: int) -> None:
        """Copy all fields into another buffer, which this reserves.

        Args:
            into: the other buffer.
            specs: the fields.
            num_samples: samples in this buffer.
        """
        into.reserve(specs, num_samples, {name: len(self._views[name][0]) for name in specs if specs[name].ragged})
        for name, arrays in self._views.items():
            for taken, given in zip(arrays, into.arrays(name), strict=True):
                np.copyto(given, taken)

    def give_back(self) -> None:
        """Drop our references: the pool refills the memory when no other is left. Calling it twice is fine."""
        self._views = {}
        if not self._is_left:
            self._is_left = True
            self.lease.leave()

    def _room(self, count: int, dtype: DType, *, exact: bool = False) -> NDArray:
        self._num_bytes += count * dtype.itemsize
        self._num_pieces += 1
        if self._limit_bytes is not None and self._num_bytes > self._limit_bytes:
            raise self._too_large(self._num_bytes, self._limit_bytes)
        return self._memory.take(count, dtype, lease=self.lease, exact=exact)

    def _too_large(self, num_bytes: int, limit_bytes: int) -> Exception:
        return self._memory.over_cap(
            f"a batch needs at least {num_bytes} bytes, but a batch buffer may use {limit_bytes}: allow more memory "
            "(max_host_memory_bytes=, max_gpu_memory_bytes=), or use a smaller batch size or depth; transform= or a "
            "stage of a curriculum may have made the samples larger"
        )


def _kept_rows(arrays: tuple[NDArray, ...], kept: BoolArray) -> tuple[NDArray, ...]:
    """Return the arrays of a field with only the kept rows, moved to the start of the same memory.

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
    """Return the kept rows, moved to the start of the same memory."""
    count = int(kept.sum())
    if array.ndim == 1:
        array[:count] = array[kept]
        return array[:count]
    # row by row: selecting all at once would allocate as much memory again
    for to, row in enumerate(np.flatnonzero(kept).tolist()):
        if to != row:
            array[to] = array[row]
    return array[:count]
