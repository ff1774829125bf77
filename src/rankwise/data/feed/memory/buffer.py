"""Memory that a batch lies in: a buffer of its own, or its part of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from rankwise.data.contract import BatchBuffer, BoolArray, DType, FieldSpec, NDArray
from rankwise.data.feed.memory.lease import Done, Lease
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.errors import ConfigError

__all__ = ["HostBuffer", "Lent", "LentPart", "SharedBuffer"]


class Lent(Protocol):
    """Memory of one batch.

    Attributes:
        busy: what must have happened before the memory is filled again.
    """

    busy: Done | None

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field, see `HostBuffer.arrays`."""
        ...

    def keep(self, kept: BoolArray) -> None:
        """Drop rows, see `HostBuffer.keep`."""
        ...

    def give_back(self) -> None:
        """Need the arrays no more: the memory is filled again when nobody looks at it. Calling it twice is fine."""
        ...


class HostBuffer:
    """Implements `BatchBuffer` in memory of a pool, until nobody looks at its arrays any more.

    Each array, and whatever shares its memory, keeps that memory; the buffer does so, too, until it is reserved again
    or given back.

    Args:
        memory: where it comes from; None = a pool of its own.
        lease: ends with the last of its arrays; None = one that nobody asks about.
        limit_bytes: most bytes it may hold; None = any.
        spares: batches that the pool remembers while nobody has them.
        too_large: makes the error of a batch that would take so many bytes where so many are allowed.
    """

    def __init__(
        self,
        memory: MemoryPool | None = None,
        *,
        lease: Lease | None = None,
        limit_bytes: int | None = None,
        spares: int = 1,
        too_large: Callable[[int, int], Exception] | None = None,
    ) -> None:
        self._memory = MemoryPool() if memory is None else memory
        self._lease = Lease() if lease is None else lease
        self._limit_bytes, self._spares = limit_bytes, spares
        self._too_large = too_large or _too_large
        self._views: dict[str, tuple[NDArray, ...]] = {}
        self._num_bytes = self._num_pieces = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that were reserved."""
        return self._num_bytes

    @property
    def busy(self) -> Done | None:
        """What must have happened before the memory is filled again."""
        return self._lease.busy

    @busy.setter
    def busy(self, done: Done | None) -> None:
        self._lease.busy = done

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Make room for `num_samples` samples of `specs`, beside what an earlier `reserve` gave, if somebody has it.

        Args:
            specs: fields and what a sample of each looks like.
            num_samples: length of the batch axis, may be 0.
            capacity: for each ragged field, the most values. Its column numbers and row pointers have one dtype, as
                torch wants them: int32 where the columns of a row fit, whatever the batch.

        Raises:
            ConfigError: a ragged field has no entry in `capacity`, or more values than its row pointers count, or the
                batch is larger than the buffer may be.
        """
        self._views, self._num_bytes, self._num_pieces = {}, 0, 0
        if self.busy is not None:
            self.busy.synchronize()
            self.busy = None
        self._views = {name: self._field(name, spec, num_samples, capacity) for name, spec in specs.items()}
        self._memory.expect(self._spares, num_pieces=self._num_pieces, num_bytes=self._num_bytes)

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
        self._views = {name: _kept_rows(arrays, kept) for name, arrays in self._views.items()}

    def forget(self) -> None:
        """Need the arrays no more: who has parts of them keeps the memory."""
        self._views = {}

    def give_back(self) -> None:
        """Forget the arrays, and leave the lease. Calling it twice is fine."""
        self._views = {}
        self._lease.leave()

    def _field(self, name: str, spec: FieldSpec, num_samples: int, capacity: Mapping[str, int]) -> tuple[NDArray, ...]:
        if not spec.ragged:
            shape = (num_samples, *spec.shape)
            return (self._room(math.prod(shape), spec.dtype, exact=True).reshape(shape),)
        if name not in capacity:
            raise ConfigError(f"the ragged field {name!r} has no capacity: its plan must say how many values it holds")
        values, index = capacity[name], spec.index_dtype
        if values > np.iinfo(index).max:
            raise ConfigError(
                f"the ragged field {name!r} has {values} values in one batch, {index} counts up to "
                f"{np.iinfo(index).max}: take a smaller micro_batch"
            )
        return self._room(values, spec.dtype), self._room(values, index), self._room(num_samples + 1, index, exact=True)

    def _room(self, count: int, dtype: DType, *, exact: bool = False) -> NDArray:
        self._num_bytes += count * dtype.itemsize
        self._num_pieces += 1
        _check_limit(self._num_bytes, self._limit_bytes, self._too_large)
        return self._memory.take(count, dtype, lease=self._lease, exact=exact)


class LentPart:
    """Neighbouring samples of a buffer.

    Args:
        views: the arrays of each field.
        lease: of the buffer.
        leave: says that this part is left.
    """

    def __init__(self, views: Mapping[str, tuple[NDArray, ...]], lease: Lease, leave: Callable[[], object]) -> None:
        self._views, self._lease = dict(views), lease
        self._leave: Callable[[], object] | None = leave

    @property
    def busy(self) -> Done | None:
        """What the buffer waits for."""
        return self._lease.busy

    @busy.setter
    def busy(self, done: Done | None) -> None:
        self._lease.wait_for(done)

    @property
    def num_bytes(self) -> int:
        """Bytes of all fields."""
        return sum(array.nbytes for arrays in self._views.values() for array in arrays)

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field."""
        return self._views[field]

    def keep(self, kept: BoolArray) -> None:
        """Drop rows: the kept ones move up within the part."""
        self._views = {name: _kept_rows(arrays, kept) for name, arrays in self._views.items()}

    def copy_to(self, into: BatchBuffer, specs: Mapping[str, FieldSpec], num_samples: int) -> None:
        """Copy all fields.

        Args:
            into: another buffer.
            specs: the fields.
            num_samples: samples of the part.
        """
        capacity = {name: len(self._views[name][0]) for name, spec in specs.items() if spec.ragged}
        into.reserve(specs, num_samples, capacity)
        for name, arrays in self._views.items():
            for taken, given in zip(arrays, into.arrays(name), strict=True):
                np.copyto(given, taken)

    def give_back(self) -> None:
        """Need the part no more."""
        leave, self._leave, self._views = self._leave, None, {}
        if leave is not None:
            leave()


class SharedBuffer:
    """A buffer of whose samples several batches have their parts; its memory is that of all of them.

    Args:
        whole: the buffer; its samples are there.
        lease: its lease, which is left when the last part is.
        limit_bytes: most bytes of a part; None = any.
    """

    def __init__(self, whole: HostBuffer, lease: Lease, *, limit_bytes: int | None = None) -> None:
        self._whole, self._lease, self._limit_bytes = whole, lease, limit_bytes
        self._num_parts, self._is_closed = 0, False
        self._gone: list[None] = []  # one for each part that was left; a list, as several threads leave

    def part(self, specs: Mapping[str, FieldSpec], first: int, last: int) -> LentPart:
        """Lend samples ``first:last``.

        Args:
            specs: the fields.
            first: the first of them.
            last: the end of them.

        Raises:
            ConfigError: a batch may not be that large.
        """
        views = {name: _part_of(self._whole.arrays(name), first, last) for name in specs}
        part = LentPart(views, self._lease, self._leave)
        _check_limit(part.num_bytes, self._limit_bytes)
        self._num_parts += 1
        return part

    def close(self) -> None:
        """Lend no more parts."""
        self._is_closed = True
        self._whole.forget()
        self._leave_if_last()

    def _leave(self) -> None:
        self._gone.append(None)
        self._leave_if_last()

    def _leave_if_last(self) -> None:
        # who closes and who leaves look after they wrote, so that one of them sees both; leaving twice is fine
        if self._is_closed and len(self._gone) == self._num_parts:
            self._lease.leave()


def _part_of(arrays: tuple[NDArray, ...], first: int, last: int) -> tuple[NDArray, ...]:
    """Return the arrays of some samples, as views but for row pointers, which begin at 0."""
    if len(arrays) == 1:
        return (arrays[0][first:last],)
    data, indices, indptr = arrays
    values = slice(int(indptr[first]), int(indptr[last]))
    return data[values], indices[values], indptr[first : last + 1] - indptr[first]


def _check_limit(
    num_bytes: int, limit_bytes: int | None, too_large: Callable[[int, int], Exception] | None = None
) -> None:
    """Refuse a batch that is too large.

    Args:
        num_bytes: what it takes.
        limit_bytes: what it may take; None = anything.
        too_large: makes the error from both.

    Raises:
        ConfigError: it takes more.
    """
    if limit_bytes is not None and num_bytes > limit_bytes:
        raise (too_large or _too_large)(num_bytes, limit_bytes)


def _too_large(num_bytes: int, limit_bytes: int) -> ConfigError:
    return ConfigError(
        f"a batch takes at least {num_bytes} bytes, a batch buffer may take {limit_bytes}: allow more memory, or "
        "take a smaller batch size or depth; transform= or a stage of a curriculum may have made the samples larger"
    )


def _kept_rows(arrays: tuple[NDArray, ...], kept: BoolArray) -> tuple[NDArray, ...]:
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
