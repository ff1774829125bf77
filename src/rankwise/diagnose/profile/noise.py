"""Medians with their spread, and a test whether two differ: no verdict if the noise is larger than the effect."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.errors import ConfigError

LEAST_RUNS = 3
# Two-sided critical values of Student's t at 5 %, by degrees of freedom; in between, take the larger value.
_CRITICAL = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228, 15: 2.131, 30: 2.042}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lower and upper quartile of some runs."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles; for fewer than four values, the quartiles are the range."""
    if not values:
        raise ConfigError("a spread needs at least one value")
    if len(values) < 4:
        return Spread(statistics.median(values), min(values), max(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def differ(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether two settings differ in the times or rates (> 0) of their runs: Welch's t-test of the logarithms at 5 %.

    With fewer than three runs of one setting, the result is False. The unit is a whole run, started in random order:
    steps of one run are more similar than steps of different runs, so single steps would make noise look significant.
    """
    if min(len(left), len(right)) < LEAST_RUNS:
        return False
    logs = [[math.log(value) for value in side] for side in (left, right)]
    gap = abs(statistics.fmean(logs[0]) - statistics.fmean(logs[1]))
    errors = [statistics.variance(side) / len(side) for side in logs]
    if not sum(errors):
        return gap > 0
    degrees = sum(errors) ** 2 / sum(error**2 / (len(side) - 1) for error, side in zip(errors, logs, strict=True))
    critical = _CRITICAL[max(known for known in _CRITICAL if known <= degrees + 1e-9)]
    return gap > critical * math.sqrt(sum(errors))
