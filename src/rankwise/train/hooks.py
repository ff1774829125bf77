"""Where a training run can be looked at and steered without a new loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise.train.exact import StepReport

if TYPE_CHECKING:
    from rankwise.train.trainer import Trainer

__all__ = ["Hooks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions that the trainer calls, on every rank alike (so they may hold collectives).

    Attributes:
        fit_start: once, after resuming and before the first step.
        step_end: after each optimizer step, with what it did.
        log: at each log step, with the step number and the reduced values (equal on all ranks).
        epoch_end: after an epoch's validation and checkpoint, with the epoch and its reduced values.
        fit_end: once, after the last epoch.
    """

    fit_start: Callable[[Trainer], None] | None = None
    step_end: Callable[[Trainer, StepReport], None] | None = None
    log: Callable[[Trainer, int, Mapping[str, float]], None] | None = None
    epoch_end: Callable[[Trainer, int, Mapping[str, float]], None] | None = None
    fit_end: Callable[[Trainer], None] | None = None
