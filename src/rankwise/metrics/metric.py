"""`Metric`: what `reduce` and a checkpoint need to know of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Metric"]


@runtime_checkable
class Metric(Protocol):
    """A number that each rank accumulates on its own and that all ranks together make exact.

    What one rank has accumulated is the metric's *partial*: a flat dict of numbers. Partials merge without any rank.
    """

    @property
    def scope(self) -> Literal["reduced"]:
        """How a checkpoint treats it: the partials of the ranks merge."""
        ...

    def reset(self) -> None:
        """Forget what was accumulated."""
        ...

    def partial(self) -> dict[str, Any]:
        """Return the partial with its numbers where they are: Python numbers, or 0-d tensors on their device."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the partial as Python numbers; waits for the device."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a partial."""
        ...

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the partial of several partials (Python numbers) together; that of none is the empty one."""
        ...

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the metric's value for a partial of Python numbers."""
        ...
