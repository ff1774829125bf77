"""Medians, quartiles and ratios of paired rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with its quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles; of fewer than 4 values median, least and most."""
    if len(values) < 4:
        return Spread(low=min(values), median=statistics.median(values), high=max(values))
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low=low, median=median, high=high)


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Return the spread of the ratios round by round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])
