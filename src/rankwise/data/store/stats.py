"""Statistics that can be added field by field, and a counter for several threads."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Generic, Protocol, TypeVar

__all__ = ["Tally", "added"]


class _Stats(Protocol):
    """A dataclass of numbers."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


StatsT = TypeVar("StatsT", bound=_Stats)


def added(left: StatsT, right: StatsT) -> StatsT:
    """Return the sums of all fields of two statistics of the same kind."""
    # not by dataclasses.fields(): this is called several times for each batch
    sums = {name: getattr(left, name) + getattr(right, name) for name in left.__dataclass_fields__}
    return type(left)(**sums)


class Tally(Generic[StatsT]):
    """Statistics that accumulate; thread-safe."""

    def __init__(self, zero: StatsT) -> None:
        self._lock = threading.Lock()
        # Replaced at each addition, never changed: readers need no lock, and keep the old value.
        self._zero = self._stats = zero

    def add(self, stats: StatsT) -> None:
        """Add to the counts."""
        with self._lock:  # between reading the old and writing the new, another thread's counts would be lost
            self._stats = added(self._stats, stats)

    def reset(self) -> None:
        """Reset to the initial value."""
        with self._lock:
            self._stats = self._zero

    @property
    def stats(self) -> StatsT:
        """The counts so far."""
        return self._stats
