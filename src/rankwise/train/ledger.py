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
from rankwise.train.parts import RunningMeans, on_host

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
        self._guard = guard
        self._kept: list[tuple[StepReport, Any, Sequence[Share], str]] = []  # as `_Kept`, whose making is a call

    def keep(self, report: StepReport, batches: Sequence[Batch]) -> None:
        """Keep a step until `settle`; looks at the gradients, which are there no longer than now, without waiting."""
        gradient = self.health.look_at_gradients() if report.grad_norm is None else report.grad_norm
        self._kept.append((report, gradient, [batch.share for batch in batches], self._guard.not_finite))

    def settle(self) -> None:
        """Add up the losses and metrics of the steps that were kept, in their order, and note how they went."""
        kept, self._kept = self._kept, []
        fine = None
        for step in kept:
            report, gradient, *_ = step
            if report.overflowed:  # it was skipped: its numbers are no part of the training
                self._add((0.0, 0.0), {})
                continue
            total, weight = map(on_host, report.loss)
            # what is known here to be fine needs no note; the rest may still be on the device
            fine = step if type(total) is type(gradient) is float and math.isfinite(total + gradient) else None
            if fine is None:
                self._note(_Kept(*step), total)
            self._add((total, weight), report.metrics)
        # the last one is named if a parameter is found not to be finite
        if fine is not None:
            self._note(_Kept(*fine), 0.0)

    def _add(self, loss: tuple[Any, Any], metrics: Any) -> None:
        if type(loss[0]) is type(loss[1]) is float and not metrics:
            self.recent.waiting += loss
            self.whole.waiting += loss
        else:
            self.recent.add_all(loss, metrics)
            self.whole.add_all(loss, metrics)

    def _note(self, kept: _Kept, total: Any) -> None:
        self.health.note(
            epoch=kept.shares[0].step.epoch,
            step=kept.shares[0].step.index,
            ids=[share.ids for share in kept.shares],
            loss=total,
            gradient=kept.gradient,
            module=kept.module,
        )
