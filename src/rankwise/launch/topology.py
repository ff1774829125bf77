"""The machine's topology from /sys: NUMA nodes, hardware threads of each core, and the NUMA node of each GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise._process.cores import cpu_mask

__all__ = ["Topology", "format_numbers", "parse_cpu_list", "read_topology"]

_SYS = Path("/sys")
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_UUID = re.compile(r"GPU UUID:\s*(\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The part of a machine that this process may use.

    Attributes:
        nodes: NUMA node -> its usable hardware threads, in the order of assignment: threads of one core are adjacent.
            Nodes without usable threads are left out; without information from /sys, the machine is one node.
        siblings: hardware thread -> all usable threads of the same core, itself included.
        gpus: NUMA node of each visible GPU, in CUDA's order; None if unknown.
    """

    nodes: Mapping[int, tuple[int, ...]]
    siblings: Mapping[int, tuple[int, ...]]
    gpus: tuple[int | None, ...] = ()

    @property
    def threads(self) -> tuple[int, ...]:
        """Return all usable hardware threads, node by node."""
        return tuple(thread for node in sorted(self.nodes) for thread in self.nodes[node])


def read_topology(
    *,
    usable: Collection[int] | None = None,
    visible: str | None = None,
    sys_root: Path = _SYS,
    nvidia: Path = _NVIDIA,
) -> Topology:
    """Read the topology from the kernel.

    Args:
        usable: hardware threads that this process may use; None: its affinity mask, which also reflects the CPU set of
            a container or a scheduler.
        visible: value of CUDA_VISIBLE_DEVICES; None: take it from the environment.
        sys_root: mount point of sysfs.
        nvidia: folder in which NVIDIA's driver lists its GPUs.
    """
    threads = set(cpu_mask() if usable is None else usable)
    siblings = {thread: _siblings(sys_root, thread, threads) for thread in sorted(threads)}
    nodes = {}
    for number, listed in _nodes(sys_root):
        here = sorted(threads & listed, key=lambda thread: (siblings[thread][0], thread))
        if here:
            nodes[number] = tuple(here)
    placed = {thread for here in nodes.values() for thread in here}
    if placed != threads:  # sysfs is missing or incomplete: do not use its nodes
        nodes = {0: tuple(sorted(threads, key=lambda thread: (siblings[thread][0], thread)))}
    found = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    return Topology(nodes=nodes, siblings=siblings, gpus=tuple(_gpus(sys_root, nvidia, found)))


def format_numbers(numbers: Collection[int]) -> str:
    """Format integers as the kernel writes CPU lists: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def parse_cpu_list(text: str) -> set[int]:
    """Parse the kernel's format of a CPU list: `0-3,8,10-11`.

    Raises:
        ValueError: not in that format.
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _nodes(sys_root: Path) -> Iterator[tuple[int, set[int]]]:
    for folder in sorted((sys_root / "devices/system/node").glob("node[0-9]*")):
        try:
            yield int(folder.name.removeprefix("node")), parse_cpu_list((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue


def _siblings(sys_root: Path, thread: int, usable: Collection[int]) -> tuple[int, ...]:
    path = sys_root / f"devices/system/cpu/cpu{thread}/topology/thread_siblings_list"
    try:
        listed = parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        listed = set()
    return tuple(sorted({thread, *(listed & set(usable))}))


def _gpus(sys_root: Path, nvidia: Path, visible: str | None) -> Iterator[int | None]:
    """Yield the node of each visible GPU, in the driver's PCI bus order; CUDA's order is the same for equal GPUs."""
    present = sorted(nvidia.iterdir()) if nvidia.is_dir() else []
    uuids = {_uuid(folder): folder for folder in present}
    entries = [str(index) for index in range(len(present))] if visible is None else visible.split(",")
    for entry in map(str.strip, entries):
        if entry.isdigit() and int(entry) < len(present):
            yield _pci_node(sys_root, present[int(entry)].name)
        elif entry.startswith("GPU-"):
            found = [folder for uuid, folder in uuids.items() if uuid.startswith(entry)]
            yield _pci_node(sys_root, found[0].name) if len(found) == 1 else None
        elif entry.startswith("MIG-"):
            yield None
        else:
            return  # CUDA ignores the first invalid entry and all entries after it


def _uuid(folder: Path) -> str:
    try:
        found = _UUID.search((folder / "information").read_text())
    except OSError:
        found = None
    return found[1] if found else folder.name


def _pci_node(sys_root: Path, address: str) -> int | None:
    try:
        node = int((sys_root / "bus/pci/devices" / address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not report it
