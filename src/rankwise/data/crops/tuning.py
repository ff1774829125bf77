"""Cores and memory of NUMA nodes, latency models, limits on cores, and logging."""

from __future__ import annotations

import enum
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.launch.hardware import num_usable_cores, read_topology

__all__ = [
    "LatencyModel",
    "NumaStrategy",
    "chosen_strategy",
    "cores_here",
    "gpu_node",
    "max_concurrency",
    "pin_thread",
    "set_log_level",
    "set_log_quiet",
]

_LOG = logging.getLogger("rankwise.crops")
_PCI = Path("/sys/bus/pci/devices")


class NumaStrategy(enum.IntEnum):
    """Cores of reader threads: `AUTO` = on the node of the GPU, `PIN_TO` = on a given node, `DISABLED` = anywhere."""

    AUTO = 0
    DISABLED = 1
    PIN_TO = 2


def chosen_strategy(strategy: NumaStrategy | int, node: int) -> tuple[NumaStrategy, int]:
    """Return a strategy and its node, after a check.

    Raises:
        InvalidArgument: there is no such strategy, or it does not allow this node.
    """
    try:
        chosen = NumaStrategy(strategy)
    except ValueError:
        known = ", ".join(f"NumaStrategy.{each.name}" for each in NumaStrategy)
        raise InvalidArgument(f"numa_strategy must be one of {known}; got {strategy!r}") from None
    if (chosen is NumaStrategy.PIN_TO) != (node >= 0):
        raise InvalidArgument(
            f"numa_node must be the node for NumaStrategy.PIN_TO and -1 otherwise; got {node} with {chosen.name}"
        )
    return chosen, node


def gpu_node(pci_bus_id: str, folder: Path = _PCI) -> int:
    """Return the NUMA node of a GPU, -1 if the system does not provide it."""
    try:
        return int((folder / pci_bus_id.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def cores_here(strategy: NumaStrategy, node: int, *, device_node: int) -> frozenset[int] | None:
    """Return the cores of this machine for the reader's threads; None = do not bind them, and the log says why."""
    if strategy is NumaStrategy.DISABLED:
        return None
    wanted = node if strategy is NumaStrategy.PIN_TO else device_node
    nodes = read_topology().nodes
    if len(nodes) < 2:
        why = "this process uses one NUMA node, or the machine does not show its nodes"
    elif wanted < 0:
        why = "the node of the device is unknown; set numa_strategy=PIN_TO with numa_node="
    elif wanted not in nodes:
        why = f"this process may use no core of NUMA node {wanted}, only of {sorted(nodes)}"
    else:
        return frozenset(nodes[wanted])
    _LOG.info("reader threads are not pinned to a NUMA node: %s", why)
    return None


def pin_thread(cores: frozenset[int] | None) -> None:
    """Bind the calling thread to cores; memory that it touches first is then local to them. None does nothing."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Delay of request number n: `baseline_ns` plus a log-normal draw, at most `cap_ns`; a function of (seed, n).

    Attributes:
        baseline_ns: nanoseconds of every request.
        lognormal_mu: mean of the logarithm of the draw in nanoseconds.
        lognormal_sigma: its standard deviation; 0 with `lognormal_mu` 0 means no draw.
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
                raise InvalidArgument(f"{name} of a latency model must be finite and at least 0, got {value}")

    def delay_s(self, request: int) -> float:
        """Return the delay of a request in seconds."""
        drawn = 0.0
        if self.lognormal_mu or self.lognormal_sigma:
            rng = np.random.default_rng([self.seed, request])
            drawn = float(rng.lognormal(self.lognormal_mu, self.lognormal_sigma))
        return min(self.baseline_ns + drawn, self.cap_ns) * 1e-9


def max_concurrency() -> int:
    """Return the number of cores that this process may use: from its mask, and the quota of its container."""
    return num_usable_cores()


_LEVELS = (1, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_to_stderr: logging.Handler | None = None


def set_log_level(level: int) -> None:
    """Set the level of the logger ``rankwise.crops``: 0 = trace, 1 = debug, 2 = info, 3 = warnings, 4, 5 = fatal.

    Raises:
        InvalidArgument: the level is not in 0 to 5.
    """
    if not isinstance(level, int) or not 0 <= level < len(_LEVELS):
        raise InvalidArgument(f"a log level must be 0 (everything) to 5 (fatal only), got {level!r}")
    _LOG.setLevel(_LEVELS[level])


def set_log_quiet(quiet: bool = True) -> None:  # noqa: FBT001, FBT002  (the signature that users know)
    """Also write the log to standard error (``False``), or only to the program's own handlers (``True``, initially)."""
    global _to_stderr  # noqa: PLW0603  (there is one standard error)
    if _to_stderr is not None:
        _LOG.removeHandler(_to_stderr)
        _to_stderr = None
    if not quiet:
        _to_stderr = logging.StreamHandler()
        _to_stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _LOG.addHandler(_to_stderr)
