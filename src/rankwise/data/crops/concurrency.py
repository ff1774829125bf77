"""How many threads make sense on this machine."""

from __future__ import annotations

from rankwise.world.threads import cpu_mask, usable_cores

__all__ = ["max_concurrency"]


def max_concurrency() -> int:
    """Return the cores that this process may use: its mask, and the quota of its container."""
    return usable_cores(len(cpu_mask()))
