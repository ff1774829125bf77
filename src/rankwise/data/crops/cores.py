"""The cores of this machine that a reader may use, by NUMA node."""

from __future__ import annotations

import enum
import logging
import os
from pathlib import Path

from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.launch.hardware import num_usable_cores, read_topology

__all__ = [
    "NumaStrategy",
    "chosen_strategy",
    "cores_here",
    "gpu_node",
    "max_concurrency",
    "pin_thread",
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


def max_concurrency() -> int:
    """Return the number of cores that this process may use: from its mask, and the quota of its container."""
    return num_usable_cores()
