"""Options of a training run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from rankwise.errors import ConfigError
from rankwise.train.balance import check_balance
from rankwise.train.precision import Precision

__all__ = ["RELEASED", "TrainOptions", "read_options"]

# possible values of `may_change`, and their places in the record of a run
RELEASED = {"batch_size": "data.batch_size", "max_grad_norm": "train.max_grad_norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How often to log and to save, and when to stop.

    Attributes:
        log_every: optimizer steps between two log lines; each costs one small collective.
        save_every: optimizer steps between two checkpoints; None saves at the end of each epoch only.
        keep: number of checkpoints to keep.
        keep_best: number of best checkpoints (saved after the validation of an epoch) to keep in addition.
        best_metric: the value that defines the best.
        best_mode: "min" or "max": which value is best.
        asynchronous: a thread writes the checkpoints while the training goes on; costs the memory of a copy.
        limit_steps: stop after this many optimizer steps in total; None runs all epochs.
        max_seconds: save and stop this many seconds after the start of `fit`, with the exit code that asks a launcher
            for a restart; None = RANKWISE_MAX_SECONDS, else never.
        max_grad_norm: clip the exact gradient to this norm; None does not clip.
        may_change: options that a resumed run may change although they affect the numbers: "batch_size",
            "max_grad_norm". Such a change is logged and recorded with the attempt.
        balance: "speed" cuts the shares of each step in proportion to the measured speed of the ranks, numbers (one for
            each rank) in proportion to these, see `Balance`; None makes them equal.
        precision: run step function and validation under autocast to "bf16" or "fp16", whose loss is scaled.
    """

    log_every: int = 10
    save_every: int | None = None
    keep: int = 3
    keep_best: int | None = None
    best_metric: str = "val_loss"
    best_mode: Literal["min", "max"] = "min"
    asynchronous: bool = False
    limit_steps: int | None = None
    max_grad_norm: float | None = None
    may_change: Collection[str] = ()
    precision: Precision | None = None
    max_seconds: float | None = None
    balance: Literal["speed"] | Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("log_every", "save_every", "keep", "keep_best", "limit_steps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} is a whole number of at least 1, got {value!r}")
        unknown = sorted({self.may_change} if isinstance(self.may_change, str) else set(self.may_change) - {*RELEASED})
        if unknown:
            raise ConfigError(f"may_change holds names among {', '.join(RELEASED)}, got {', '.join(unknown)}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigError(f"max_seconds is a positive number or None, got {self.max_seconds!r}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm is a positive number or None, got {self.max_grad_norm!r}")
        check_balance(self.balance)
        if self.precision not in (None, "bf16", "fp16"):
            raise ConfigError(f"precision is 'bf16', 'fp16' or None, got {self.precision!r}")


def read_options(given: Mapping[str, Any]) -> TrainOptions:
    """Return the options from keyword arguments.

    Raises:
        ConfigError: one is unknown, or out of range.
    """
    known = [f.name for f in fields(TrainOptions)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"Trainer has no option {', '.join(unknown)}; its numbers are {', '.join(known)}")
    return TrainOptions(**given)
