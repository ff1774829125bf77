"""Sinks: where the numbers of a run go. The main rank alone has any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rankwise.tracking.outbox import Table

__all__ = ["Sink", "TableSink"]


@runtime_checkable
class Sink(Protocol):
    """One place that takes numbers. Called on the main rank only, from one thread."""

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Begin an attempt: what was logged past `restored_step` no longer counts (None: nothing counts)."""
        ...

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Take the numbers of one log step. Values may be non-finite."""
        ...

    def close(self) -> None:
        """Write out what is buffered. Called once."""
        ...


@runtime_checkable
class TableSink(Sink, Protocol):
    """A sink that takes tables, too."""

    def table(self, table: Table) -> None:
        """Take a table."""
        ...
