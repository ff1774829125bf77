"""The numbers of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.errors import ConfigError

__all__ = ["TrainOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How often to log and to save, and when to stop.

    Attributes:
        log_every: optimizer steps between two log lines; each costs one small collective.
        save_every: optimizer steps between two checkpoints; None saves at the end of each epoch only.
        keep: how many checkpoints stay.
        limit_steps: stop after so many optimizer steps in all; None runs all epochs.
        max_grad_norm: clip the exact gradient to this norm; None leaves it alone.
    """

    log_every: int = 10
    save_every: int | None = None
    keep: int = 3
    limit_steps: int | None = None
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("log_every", "save_every", "keep", "limit_steps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} is a whole number of at least 1, got {value!r}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm is a positive number or None, got {self.max_grad_norm!r}")
