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
from rankwise.metrics.host import is_tensor, to_host
from rankwise.train.step.exact import StepReport
from rankwise.train.step.health import Health
from rankwise.train.step.output import on_host
from rankwise.world import World

__all__ = ["Ledger", "RunningMeans"]

# a step's loss, and its metrics by name; each as (sum, weight)
_Taken = tuple[tuple[Any, Any], Mapping[str, tuple[Any, Any]]]


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
        self._guard = guard
        # a step's report, gradient (a check of it), shares, and module that was not finite; not its batches: their
        # memory is refilled once no reference is left
        self._kept: list[tuple[StepReport, Any, Sequence[Share], str]] = []

    def keep(self, report: StepReport, batches: Sequence[Batch]) -> None:
        """Store a step until `settle`; checks the gradients, which exist only until the next step, without waiting.

        Raises:
            GuardError: the guard found an error; on every rank.
        """
        if report.weight and not report.overflowed:  # the optimizer has stepped
            self._guard.step()
        gradient = self.health.look_at_gradients() if report.grad_norm is None else report.grad_norm
        shares = (batches[0].share,) if len(batches) == 1 else [batch.share for batch in batches]
        self._kept.append((report, gradient, shares, self._guard.not_finite))

    def settle(self) -> None:
        """Add up the losses and metrics of the stored steps, in order, and record whether they were finite."""
        kept, self._kept = self._kept, []
        on_cpu, taken = self.health.on_host, list[_Taken]()
        for report, gradient, shares, module in kept:
            if report.overflowed:  # it was skipped: its numbers do not belong to the training
                taken.append(((0.0, 0.0), {}))
                continue
            total, weight = report.loss
            if type(total) is not float:
                total = total.item() if on_cpu else on_host(total)
            self.health.note(shares, total, gradient, module)
            taken.append(((total, weight), report.metrics))
        self.recent.add(*taken)
        self.whole.add(*taken)


class RunningMeans:
    """Means by name since the last reduction, stored as a sum and a weight of this rank.

    Names may differ between ranks: a rank without samples has none.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}  # by "sum <name>" and "weight <name>", as in a checkpoint

    def add(self, *taken: _Taken) -> None:
        """Add the loss and the metrics of steps or batches, each as (sum, weight), in order. No synchronisation."""
        sums = self._sums
        for loss, metrics in taken:
            for name, (total, weight) in (("loss", loss), *metrics.items()):
                for key, number in ((f"sum {name}", total), (f"weight {name}", weight)):
                    amount = number if type(number) is float else _amount(number)
                    sums[key] = sums[key] + amount if key in sums else amount

    def reduce(self, world: World, *, reset: bool = True) -> dict[str, float]:
        """Return the means over all ranks; NaN if the weights sum to zero. Every rank calls it.

        Args:
            world: this rank's world.
            reset: set all sums to zero afterwards.
        """
        return self.reduce_noted(world, None, reset=reset)[0]

    def reduce_noted(self, world: World, note: Any, *, reset: bool = True) -> tuple[dict[str, float], list[Any]]:
        """Reduce like `reduce`, and return the notes of all ranks, by rank: small objects in the same collective."""
        mine = to_host(self._sums)
        gathered = [(mine, note)] if world.world_size == 1 else world.all_gather_object((mine, note))
        ranks, notes = zip(*gathered, strict=True)
        sums = _added(ranks)
        if reset:
            self._sums = {}
        means = dict[str, float]()
        for key in sorted(sums):
            kind, _, name = key.partition(" ")
            if kind == "sum":
                weight = sums[f"weight {name}"]
                means[name] = sums[key] / weight if weight else math.nan
        return means, list(notes)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; waits for the device."""
        return _state_of(to_host(self._sums))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore sums."""
        self._sums = _sums_in(state)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the combined sums of several ranks."""
        return _state_of(_added(map(_sums_in, states)))


def _amount(value: Any) -> Any:
    """Return what a value adds: a number, or a tensor on its device, of which all elements count."""
    value = on_host(value)
    if type(value) in (float, int):
        return value
    # a copy, as the user may change it; of one element without the operations of a weighted sum
    return value.clone() if is_tensor(value) and not value.ndim else weighted_sum(value, 1)[0]


def _added(ranks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for held in ranks:
        for key, number in held.items():
            sums[key] = sums.get(key, 0) + number
    return sums


def _state_of(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return sums in the form of a checkpoint: integers and floats apart, as `Counters` has them."""
    return {
        key: {"ints": 0, "floats": number} if type(number) is float else {"ints": number, "floats": None}
        for key, number in sums.items()
    }


def _sums_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of a checkpoint; in those of earlier versions a cell may have integers, floats and a rest."""
    return {
        key: cell["ints"] if cell["floats"] is None else cell["ints"] + cell["floats"] + cell.get("rest", 0.0)
        for key, cell in state.items()
    }
