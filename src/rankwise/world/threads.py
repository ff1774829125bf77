"""How many CPU threads a rank uses."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise._cores import cpu_mask, usable_cores
from rankwise.errors import ConfigError

__all__ = ["choose_threads", "cpu_mask", "usable_cores"]


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
