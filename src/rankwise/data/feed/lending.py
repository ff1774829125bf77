"""Memory that a batch lies in until it is released: a buffer of its own, or its part of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from rankwise.data.contract import BoolArray, FieldSpec, NDArray
from rankwise.data.feed.buffer import HostBuffer, check_limit, kept_rows
from rankwise.data.feed.done import Done

__all__ = ["Lent", "LentBuffer", "LentPart", "SharedBuffer"]


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
        """Let the memory be filled again; to be called once."""
        ...


class LentBuffer:
    """A whole buffer.

    Args:
        buffer: the buffer.
        give_back: takes it back.
    """

    def __init__(self, buffer: HostBuffer, give_back: Callable[[HostBuffer], object]) -> None:
        self.buffer, self._give_back = buffer, give_back

    @property
    def busy(self) -> Done | None:
        """What the buffer waits for."""
        return self.buffer.busy

    @busy.setter
    def busy(self, done: Done | None) -> None:
        self.buffer.busy = done

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field."""
        return self.buffer.arrays(field)

    def keep(self, kept: BoolArray) -> None:
        """Drop rows."""
        self.buffer.keep(kept)

    def give_back(self) -> None:
        """Give the buffer back."""
        self._give_back(self.buffer)


class LentPart:
    """Neighbouring samples of a buffer.

    Args:
        views: the arrays of each field.
        give_back: takes what must have happened before the buffer is filled again.
    """

    def __init__(self, views: Mapping[str, tuple[NDArray, ...]], give_back: Callable[[Done | None], None]) -> None:
        self._views, self._give_back = dict(views), give_back
        self.busy: Done | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all fields."""
        return sum(array.nbytes for arrays in self._views.values() for array in arrays)

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field."""
        return self._views[field]

    def keep(self, kept: BoolArray) -> None:
        """Drop rows: the kept ones move up within the part."""
        self._views = {name: kept_rows(arrays, kept) for name, arrays in self._views.items()}

    def copy_to(self, into: HostBuffer, specs: Mapping[str, FieldSpec], num_samples: int) -> None:
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
        """Give the part back."""
        self._give_back(self.busy)


class SharedBuffer:
    """A buffer of whose samples several batches have their parts. It goes back when the last of them does.

    Args:
        whole: the buffer; its samples are there.
        give_back: takes it back.
        limit_bytes: most bytes of a part; None = any.
    """

    def __init__(
        self, whole: HostBuffer, give_back: Callable[[HostBuffer], object], *, limit_bytes: int | None = None
    ) -> None:
        self._whole, self._give_back, self._limit_bytes = whole, give_back, limit_bytes
        self._lock = threading.Lock()
        self._num_users = 1  # who reads into it and hands out parts
        self._waiting: list[Done] = []

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
        part = LentPart(views, self._leave)
        check_limit(part.num_bytes, self._limit_bytes)
        with self._lock:
            self._num_users += 1
        return part

    def close(self) -> None:
        """Lend no more parts."""
        self._leave(None)

    def _leave(self, done: Done | None) -> None:
        with self._lock:
            if done is not None:
                self._waiting.append(done)
            self._num_users -= 1
            if self._num_users:
                return
        if self._waiting:
            self._whole.busy = _All(self._waiting)
        self._give_back(self._whole)


class _All:
    """Several things that will have happened, as one."""

    def __init__(self, parts: list[Done]) -> None:
        self._parts = parts

    def synchronize(self) -> None:
        for part in self._parts:
            part.synchronize()


def _part_of(arrays: tuple[NDArray, ...], first: int, last: int) -> tuple[NDArray, ...]:
    """Return the arrays of some samples, as views but for row pointers, which begin at 0."""
    if len(arrays) == 1:
        return (arrays[0][first:last],)
    data, indices, indptr = arrays
    values = slice(int(indptr[first]), int(indptr[last]))
    return data[values], indices[values], indptr[first : last + 1] - indptr[first]
