"""Delays for opening arrays, drawn from a distribution, to try out slow metadata servers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankwise.data.crops.exceptions import InvalidArgument

__all__ = ["LatencyModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Delay of request number n: `baseline_ns` plus a log-normal draw, at most `cap_ns`; a function of (seed, n).

    Attributes:
        baseline_ns: nanoseconds that every request takes.
        lognormal_mu: mean of the logarithm of the draw in nanoseconds.
        lognormal_sigma: its standard deviation; 0 with `lognormal_mu` 0 draws nothing.
        cap_ns: longest delay.
        seed: seed of the draws.

    Raises:
        InvalidArgument: a number is negative or not finite.
    """

    baseline_ns: float = 0.0
    lognormal_mu: float = 0.0
    lognormal_sigma: float = 0.0
    cap_ns: float = 12e9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("baseline_ns", "lognormal_mu", "lognormal_sigma", "cap_ns"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{name} of a latency model is finite and at least 0, got {value}")

    def delay_s(self, request: int) -> float:
        """Return the delay of a request in seconds."""
        drawn = 0.0
        if self.lognormal_mu or self.lognormal_sigma:
            rng = np.random.default_rng([self.seed, request])
            drawn = float(rng.lognormal(self.lognormal_mu, self.lognormal_sigma))
        return min(self.baseline_ns + drawn, self.cap_ns) * 1e-9
