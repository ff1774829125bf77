"""How many CPU threads a rank uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rankwise.errors import ConfigError

__all__ = ["choose_threads", "cpu_mask", "usable_cores"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cpu_mask() -> tuple[int, ...]:
    """Return the cores that this process may run on (all of them where the system does not say)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores(num_cores: int, quota: Path = _QUOTA) -> int:
    """Return how many of `num_cores` cores a container's quota leaves, at least 1.

    Args:
        num_cores: cores that the process may run on.
        quota: cgroup v2 file of "quota period" in microseconds; "max" or a missing file is no limit.
    """
    try:
        limit, period = quota.read_text().split()
        return max(1, min(num_cores, int(limit) // int(period)))
    except (OSError, ValueError):
        return max(1, num_cores)


def choose_threads(requested: int | None, *, environ: Mapping[str, str], cores: int, sharers: int) -> int:
    """Return the threads of this rank: as requested, else OMP_NUM_THREADS, else its part of the cores, at least 1.

    Args:
        requested: the caller's wish.
        environ: the environment.
        cores: cores that this process may use.
        sharers: ranks that share them, this one included.

    Raises:
        ConfigError: the wish or OMP_NUM_THREADS is not a whole number of at least 1.
    """
    if requested is not None:
        if requested < 1:
            raise ConfigError(f"threads is a number of at least 1, got {requested}")
        return requested
    text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not text:
        return max(1, cores // max(1, sharers))
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"OMP_NUM_THREADS is a number of at least 1, it is {environ['OMP_NUM_THREADS']!r}: unset it")
    return int(text)
