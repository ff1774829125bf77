"""Records of steps for the log: stored quickly, and evaluated together on demand; and their means over all ranks.

Between the operations of a step a line of Python costs several times as much as in a sequence, because the CPU has run
other code in between. So a step only stores a tuple, and everything that can wait is done for several steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rankwise.data.contract import Batch, Share
from rankwise.guard import Guard
from rankwise.metrics.amounts import weighted_sum
from rankwise.metrics.host import to_host
from rankwise.train.step.exact import StepReport
from rankwise.train.step.health import Health
from rankwise.train.step.output import on_host
from rankwise.world import World

__all__ = ["Ledger", "RunningMeans"]

_PAIR = ("sum", "weight")


class Ledger:
    """Records steps, for the means of the log and of the epoch and for the check whether they were finite.

    Args:
        recent: means since the last log line.
        whole: means since the start of the epoch.
        health: checks whether the numbers stay finite.
        guard: knows which module was not finite.
    """

    def __init__(self, recent: RunningMeans, whole: RunningMeans, health: Health, guard: Guard) -> None:
        self.recent, self.whole, self.health = recent, whole, health
        self._guard, self._num_taken = guard, 0
        # a step's report, gradient (a check of it), shares, and module that was not finite; not its batches: their
        # memory is refilled once no reference is left
        self._kept: list[tuple[StepReport, Any, Sequence[Share], str]] = []

    def keep(self, report: StepReport, batches: Sequence[Batch]) -> None:
        """Store a step until `settle`; checks the gradients, which exist only until the next step, without waiting.

        Raises:
            GuardError: the guard, which is called after few steps, found an error; on every rank.
        """
        if report.weight and not report.overflowed:  # the optimizer has stepped
            self._num_taken += 1
            if self._num_taken >= self._guard.wake:
                self._guard.catch_up(self._num_taken)
        gradient = self.health.look_at_gradients() if report.grad_norm is None else report.grad_norm
        shares = (batches[0].share,) if len(batches) == 1 else [batch.share for batch in batches]
        self._kept.append((report, gradient, shares, self._guard.not_finite))

    def settle(self) -> None:
        """Add up the losses and metrics of the stored steps, in order, and record whether they were finite."""
        kept, self._kept = self._kept, []
        on_cpu = self.health.on_host
        for report, gradient, shares, module in kept:
            total, weight = report.loss
            metrics = report.metrics
            if report.overflowed:  # it was skipped: its numbers do not belong to the training
                total, weight, metrics = 0.0, 0.0, {}
            else:
                if type(total) is not float:
                    total = total.item() if on_cpu else on_host(total)
                self.health.note(shares, total, gradient, module)
            self.recent.add_all((total, weight), metrics)
            self.whole.add_all((total, weight), metrics)


class RunningMeans:
    """Means by name since the last reduction, stored as a sum and a weight of this rank.

    Names may differ between ranks: a rank without samples has none.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, Any]] = {}

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Add a weighted sum and its weight. No synchronisation."""
        if type(total) is not float:
            total = _amount(total)
        if type(weight) is not float:
            weight = _amount(weight)
        before = self._sums.get(name)
        self._sums[name] = (total, weight) if before is None else (before[0] + total, before[1] + weight)

    def add_all(self, loss: tuple[Any, Any], metrics: Mapping[str, tuple[Any, Any]]) -> None:
        """Add the losses and metrics of a step or a batch, each as (sum, weight)."""
        self.add("loss", *loss)
        for name, (total, weight) in metrics.items():
            self.add(name, total, weight)

    def reduce(self, world: World, *, reset: bool = True) -> dict[str, float]:
        """Return the means over all ranks; NaN if the weights sum to zero. Every rank calls it.

        Args:
            world: this rank's world.
            reset: set all sums to zero afterwards.
        """
        return self.reduce_noted(world, None, reset=reset)[0]

    def reduce_noted(self, world: World, note: Any, *, reset: bool = True) -> tuple[dict[str, float], list[Any]]:
        """Reduce like `reduce`, and return the notes of all ranks, by rank: small objects in the same collective."""
        mine = self._on_host()
        gathered = [(mine, note)] if world.world_size == 1 else world.all_gather_object((mine, note))
        sums = _added(held for held, _ in gathered)
        if reset:
            self._sums = {}
        means = {name: total / weight if weight else math.nan for name, (total, weight) in sorted(sums.items())}
        return means, [noted for _, noted in gathered]

    def _on_host(self) -> dict[str, tuple[Any, Any]]:
        """Return this rank's sums as numbers; waits for the device."""
        cells = to_host({(name, part): cell for name, pair in self._sums.items() for part, cell in enumerate(pair)})
        return {name: (cells[name, 0], cells[name, 1]) for name in self._sums}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; waits for the device."""
        return _state_of(self._on_host())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore sums."""
        self._sums = _sums_in(state)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the combined sums of several ranks."""
        return _state_of(_added(map(_sums_in, states)))


def _amount(value: Any) -> Any:
    """Return what a value adds: a number, or a tensor on its device, of which all elements count."""
    value = on_host(value)
    return value if type(value) in (float, int) else weighted_sum(value, 1)[0]


def _added(ranks: Iterable[Mapping[str, tuple[Any, Any]]]) -> dict[str, tuple[Any, Any]]:
    sums: dict[str, tuple[Any, Any]] = {}
    for held in ranks:
        for name, (total, weight) in held.items():
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + total, before[1] + weight)
    return sums


def _state_of(sums: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return sums in the form of a checkpoint: integers and floats apart, as `Counters` has them."""
    named = {f"{what} {name}": number for name, pair in sums.items() for what, number in zip(_PAIR, pair, strict=True)}
    return {
        key: {"ints": 0, "floats": number} if type(number) is float else {"ints": number, "floats": None}
        for key, number in named.items()
    }


def _sums_in(state: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the sums of a checkpoint; in those of earlier versions a cell may have integers, floats and a rest."""
    numbers = {
        key: cell["ints"] if cell["floats"] is None else cell["ints"] + cell["floats"] + cell.get("rest", 0.0)
        for key, cell in state.items()
    }
    names = dict.fromkeys(key.partition(" ")[2] for key in numbers)
    return {name: (numbers[f"sum {name}"], numbers[f"weight {name}"]) for name in names}
