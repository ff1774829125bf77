"""Which checkpoints to keep: the newest, the best, and those at multiples of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rankwise.checkpoint.format.manifest import CheckpointInfo
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Rules for keeping checkpoints; the arguments of `Checkpointer` with the same names.

    Attributes:
        keep: number of newest ones.
        keep_every: multiples of this step are kept.
        keep_best: number of best ones.
        metric: name of the number that defines the best.
        mode: whether a small or a large one is best.
    """

    keep: int | None
    keep_every: int | None
    keep_best: int | None
    metric: str | None
    mode: Literal["min", "max"]

    def __post_init__(self) -> None:
        counts = (self.keep, self.keep_every, self.keep_best)
        if any(count is not None and count < 1 for count in counts):
            raise ConfigError(
                "keep, keep_every and keep_best must be at least 1 or None, got {}, {} and {}".format(*counts)
            )
        if self.mode not in ("min", "max"):
            raise ConfigError(f"mode must be 'min' or 'max', got {self.mode!r}")
        if self.keep_best is not None and self.metric is None:
            raise ConfigError(f"keep_best={self.keep_best} needs metric=, a name from the metrics= of save")

    def by_quality(self, found: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
        """Return those with the metric, best first; equal ones newest first. NaN does not count."""
        sign = 1.0 if self.mode == "min" else -1.0
        values = [(sign * info.metrics.get(self.metric or "", math.nan), info) for info in found]
        return [info for value, info in sorted((v for v in values if not math.isnan(v[0])), key=lambda pair: pair[0])]

    def surplus(self, found: Sequence[CheckpointInfo], newest: CheckpointInfo) -> list[CheckpointInfo]:
        """Return checkpoints that need not be kept.

        Args:
            found: complete ones, newest first.
            newest: the one that was just saved, which counts as newest, and is kept.
        """
        if self.keep is None:
            return []
        ordered = [newest, *(info for info in found if info.path != newest.path)]
        best = {info.path for info in self.by_quality(ordered)[: self.keep_best or 0]}
        return [
            info
            for info in ordered[self.keep :]
            if info.path not in best and not (self.keep_every and info.step % self.keep_every == 0)
        ]
