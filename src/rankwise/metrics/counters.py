"""`Counters`: sums by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rankwise.metrics.host import partials_on_host
from rankwise.metrics.values import Sum
from rankwise.world import World


class Counters:
    """Sums by name, for example losses and sample counts: added locally, and over ranks in one collective.

    Unlike `collections.Counter`, whose ``+`` drops sums that are zero or negative, it keeps all sums. A name that only
    some ranks have counts as 0 on the others.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._sums: dict[str, Sum] = {}

    def update(self, amounts: Mapping[str, Any]) -> None:
        """Add ``{name: number, tensor or array}``; all elements count. No communication, no device synchronisation.

        Raises:
            ConfigError: a value is not numeric.
        """
        for name, amount in amounts.items():
            held = self._sums.get(name)
            if held is None:
                held = self._sums[name] = Sum()
            held.update(amount)

    def reset(self) -> None:
        """Remove all names and sums."""
        self._sums.clear()

    def reduce(self, world: World | None = None, *, reset: bool = False) -> dict[str, float | int]:
        """Return the sums over all ranks, sorted by name, on every rank. Every rank must call it.

        Args:
            world: default ``World.current()``.
            reset: remove the local sums afterwards.
        """
        world = World.current() if world is None else world
        sums = self.read_states(world.all_gather_object(self.state_dict()))
        if reset:
            self.reset()
        return sums

    def read_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, float | int]:
        """Return the sums over the given ranks' states, sorted by name. Not a collective."""
        return {name: Sum().read_state(state) for name, state in self.merge_states(states).items()}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; synchronises with the device."""
        return partials_on_host(self._sums)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load sums."""
        sums = {name: Sum() for name in state}
        for name, metric in sums.items():
            metric.load_state_dict(state[name])
        self._sums = sums

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the union of the names, with their sums added."""
        names = sorted({name for state in states for name in state})
        return {name: Sum().merge_states([state[name] for state in states if name in state]) for name in names}
