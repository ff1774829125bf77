"""Records of steps for the log: stored quickly, and evaluated together on demand; and their means over all ranks.

Between the operations of a step a line of Python costs several times as much as in a sequence, because the CPU has run
other code in between. So a step only stores a tuple, and everything that can wait is done for several steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rankwise.data.contract import Batch, Share
from rankwise.guard import Guard
from rankwise.metrics import Counters
from rankwise.train.step.exact import StepReport
from rankwise.train.step.health import Health
from rankwise.train.step.output import on_host
from rankwise.world import World

__all__ = ["Ledger", "RunningMeans"]


class _Kept(NamedTuple):
    report: StepReport
    gradient: Any
    shares: Sequence[Share]  # not the batches: their memory is refilled once no reference is left
    module: str


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
        self._kept: list[tuple[StepReport, Any, Sequence[Share], str]] = []  # as `_Kept`, without its constructor call

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
        fine, sums, on_cpu = None, list[float](), self.health.on_host
        for step in kept:
            report, gradient, _, _ = step
            total, weight = report.loss
            if type(total) is not float:
                total = total.item() if on_cpu else on_host(total)
            if type(weight) is not float:
                weight = on_host(weight)
            if report.overflowed:  # it was skipped: its numbers do not belong to the training
                sums += (0.0, 0.0)
                continue
            # values known to be finite need no note; others may still be on the device
            fine = step if type(total) is type(gradient) is float and math.isfinite(total + gradient) else None
            if fine is None:
                self._note(_Kept(*step), total)
            if type(total) is type(weight) is float and not report.metrics:
                sums += (total, weight)
            else:
                self._add_waiting(sums)
                self.recent.add_all((total, weight), report.metrics)
                self.whole.add_all((total, weight), report.metrics)
        self._add_waiting(sums)
        # the last step is named if a parameter turns out not to be finite
        if fine is not None:
            self._note(_Kept(*fine), 0.0)

    def _add_waiting(self, sums: list[float]) -> None:
        """Add losses that are plain numbers, alternating with their weights; empties the list."""
        self.recent.waiting += sums
        self.whole.waiting += sums
        sums.clear()

    def _note(self, kept: _Kept, total: Any) -> None:
        self.health.note(
            epoch=kept.shares[0].step.epoch,
            step=kept.shares[0].step.index,
            ids=[share.ids for share in kept.shares],
            loss=total,
            gradient=kept.gradient,
            module=kept.module,
        )


class RunningMeans:
    """Means by name since the last reduction, stored as a sum and a weight of this rank.

    Names may differ between ranks: a rank without samples has none.

    Attributes:
        waiting: losses and weights, alternating floats, that are summed on demand: the loop records a
            step without the cost of a call. They are summed in order, so the result is the same to the bit.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        # sums of Python numbers of one type only (on a CPU all of them), and the other sums
        self._plain: dict[str, float | int] = {}
        self._sums, self._others = Counters(), set[str]()
        self.waiting: list[float] = []

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Add a weighted sum and its weight. No synchronisation."""
        if self.waiting:
            self.add_waiting()
        plain, key, per = self._plain, f"sum {name}", f"weight {name}"
        before = plain.get(key)
        if type(before) is type(total) is type(weight) is type(plain.get(per)) is float:
            plain[key] = before + total
            plain[per] += weight
            return
        self._add(key, on_host(total))
        self._add(per, on_host(weight))

    def add_waiting(self) -> None:
        """Sum the waiting losses, in order of arrival."""
        held, self.waiting = self.waiting, []
        if not held:
            return
        plain, at = self._plain, 0
        total, weight = plain.get("sum loss"), plain.get("weight loss")
        if total is weight is None and "sum loss" not in self._others and "weight loss" not in self._others:
            total, weight, at = held[0], held[1], 2
        if type(total) is not float or type(weight) is not float:  # tensors were added before
            for at in range(0, len(held), 2):
                self.add("loss", held[at], held[at + 1])
            return
        # one by one: newer Pythons' `sum` compensates errors, so the result would depend on when it is called
        for number in held[at::2]:
            total += number
        for number in held[at + 1 :: 2]:
            weight += number
        plain["sum loss"], plain["weight loss"] = total, weight

    def add_all(self, loss: tuple[Any, Any], metrics: Mapping[str, tuple[Any, Any]]) -> None:
        """Add the losses and metrics of a step or a batch, each as (sum, weight)."""
        self.add("loss", *loss)
        for name, (total, weight) in metrics.items():
            self.add(name, total, weight)

    def add_step(self, report: StepReport) -> None:
        """Add the losses and metrics of one step."""
        self.add_all(report.loss, report.metrics)

    def _add(self, key: str, number: Any) -> None:
        before, kind = self._plain.get(key), type(number)
        if type(before) is kind and before is not None:
            self._plain[key] = before + number
        elif before is None and kind in (float, int) and key not in self._others:
            self._plain[key] = number
        else:
            self._others.add(key)
            if before is not None:
                self._sums.update({key: self._plain.pop(key)})
            self._sums.update({key: number})

    def reduce(self, world: World, *, reset: bool = True) -> dict[str, float]:
        """Return the means over all ranks; NaN if the weights sum to zero. Every rank calls it.

        Args:
            world: this rank's world.
            reset: set all sums to zero afterwards.
        """
        return self.reduce_noted(world, None, reset=reset)[0]

    def reduce_noted(self, world: World, note: Any, *, reset: bool = True) -> tuple[dict[str, float], list[Any]]:
        """Reduce like `reduce`, and return the notes of all ranks, by rank: small objects in the same collective."""
        self.add_waiting()
        if world.world_size == 1 and not self._others:
            sums, notes = dict(sorted(self._plain.items())), [note]
        else:
            gathered = world.all_gather_object((self.state_dict(), note))
            sums, notes = self._sums.read_states([state for state, _ in gathered]), [noted for _, noted in gathered]
        if reset:
            self._plain.clear()
            if self._others:
                self._sums.reset()
                self._others.clear()
        means = dict[str, float]()
        for key, total in sums.items():
            kind, _, name = key.partition(" ")
            if kind == "sum":
                weight = sums[f"weight {name}"]
                means[name] = total / weight if weight else math.nan
        return means, notes

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; waits for the device."""
        self.add_waiting()
        plain = {
            key: {"ints": 0, "floats": number} if type(number) is float else {"ints": number, "floats": None}
            for key, number in self._plain.items()
        }
        return {**self._sums.state_dict(), **plain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore sums."""
        self.waiting = []
        mixed = {key: cell for key, cell in state.items() if cell["floats"] is not None and cell["ints"]}
        self._sums.load_state_dict(mixed)
        self._others = set(mixed)
        plain = {key: cell for key, cell in state.items() if key not in mixed}
        self._plain = {key: cell["ints"] if cell["floats"] is None else cell["floats"] for key, cell in plain.items()}

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the combined sums of several ranks."""
        return self._sums.merge_states(states)
