"""What steps leave behind for the log: kept as it comes, and worked out together when somebody asks.

Between the operations of a step a line of Python costs several times what it costs in a row, as the processor has met
other code meanwhile. So a step leaves a tuple, and everything that can wait is done for some of them in one go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rankwise.data.contract import Batch, Share
from rankwise.guard import Guard
from rankwise.train.exact import StepReport
from rankwise.train.health import Health
from rankwise.train.output import on_host
from rankwise.train.parts import RunningMeans

__all__ = ["Ledger"]


class _Kept(NamedTuple):
    report: StepReport
    gradient: Any
    shares: Sequence[Share]  # not the batches: their memory is filled again once nobody has them
    module: str


class Ledger:
    """Takes steps down, for the means of the log and of the epoch and for the judgement whether they were finite.

    Args:
        recent: means since the last log line.
        whole: means since the start of the epoch.
        health: whether what the steps do stays finite.
        guard: tells which module was not finite.
    """

    def __init__(self, recent: RunningMeans, whole: RunningMeans, health: Health, guard: Guard) -> None:
        self.recent, self.whole, self.health = recent, whole, health
        self._guard, self._num_taken = guard, 0
        self._kept: list[tuple[StepReport, Any, Sequence[Share], str]] = []  # as `_Kept`, whose making is a call

    def keep(self, report: StepReport, batches: Sequence[Batch]) -> None:
        """Keep a step until `settle`; looks at the gradients, which are there no longer than now, without waiting.

        Raises:
            GuardError: the guard, which is called after few steps, has found something; on every rank.
        """
        if report.weight and not report.overflowed:  # the optimizer has stepped
            self._num_taken += 1
            if self._num_taken >= self._guard.wake:
                self._guard.catch_up(self._num_taken)
        gradient = self.health.look_at_gradients() if report.grad_norm is None else report.grad_norm
        shares = (batches[0].share,) if len(batches) == 1 else [batch.share for batch in batches]
        self._kept.append((report, gradient, shares, self._guard.not_finite))

    def settle(self) -> None:
        """Add up the losses and metrics of the steps that were kept, in their order, and note how they went."""
        kept, self._kept = self._kept, []
        fine, sums, on_cpu = None, list[float](), self.health.on_host
        for step in kept:
            report, gradient, _, _ = step
            total, weight = report.loss
            if type(total) is not float:
                total = total.item() if on_cpu else on_host(total)
            if type(weight) is not float:
                weight = on_host(weight)
            if report.overflowed:  # it was skipped: its numbers are no part of the training
                sums += (0.0, 0.0)
                continue
            # what is known here to be fine needs no note; the rest may still be on the device
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
        # the last one is named if a parameter is found not to be finite
        if fine is not None:
            self._note(_Kept(*fine), 0.0)

    def _add_waiting(self, sums: list[float]) -> None:
        """Take over losses that are plain numbers, in turn with their weights; empties the list."""
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
