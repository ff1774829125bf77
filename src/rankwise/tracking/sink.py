"""Sinks: destinations of a run's numbers. Only the main rank has sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["Sink"]


@runtime_checkable
class Sink(Protocol):
    """A destination for numbers. Called on the main rank only, from one thread.

    If it also has a method `table`, it receives the tables.
    """

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Begin an attempt: values logged past `restored_step` become invalid (None: all values)."""
        ...

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Log the numbers of one step. Values may be non-finite."""
        ...

    def close(self) -> None:
        """Flush buffered values. Called once."""
        ...
