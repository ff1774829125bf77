"""Records of steps for the log: stored quickly, and evaluated together on demand.

Between the operations of a step a line of Python costs several times as much as in a sequence, because the CPU has run
other code in between. So a step only stores a tuple, and everything that can wait is done for several steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rankwise.data.contract import Batch, Share
from rankwise.guard import Guard
from rankwise.train.loop.parts import RunningMeans
from rankwise.train.step.exact import StepReport
from rankwise.train.step.health import Health
from rankwise.train.step.output import on_host

__all__ = ["Ledger"]


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
