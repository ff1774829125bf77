"""`Metric`: the interface of a metric for `reduce` and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable


@runtime_checkable
class Metric(Protocol):
    """A number that each rank accumulates locally, and whose exact value follows from the values of all ranks.

    A rank's accumulated values are the metric's *partial*: a flat dict of numbers. Partials merge without a collective.
    """

    @property
    def scope(self) -> Literal["reduced"]:
        """How a checkpoint treats it: it merges the partials of the ranks."""
        ...

    def reset(self) -> None:
        """Clear the accumulated values."""
        ...

    def partial(self) -> dict[str, Any]:
        """Return the partial without a copy to the host: Python numbers, or 0-d tensors on their device."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the partial as Python numbers; synchronises with the device."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a partial."""
        ...

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge several partials (Python numbers) into one; for none, return an empty partial."""
        ...

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the metric's value for a partial of Python numbers."""
        ...
