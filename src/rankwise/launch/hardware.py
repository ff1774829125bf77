"""What this machine has, found without torch: usable cores, visible GPUs, NUMA nodes and who shares a core."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rankwise._process.cores import cpu_mask, usable_cores
from rankwise.errors import ConfigError

MAX_RANKS = 16_384  # of one machine; more is a typing error, and would exhaust memory or process numbers
_SYS = Path("/sys")
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_DXG = Path("/dev/dxg")  # NVIDIA under WSL
_Read = TypeVar("_Read")
_UUID = re.compile(r"GPU UUID:\s*(\S+)")


def count_ranks(word: str, option: str, *, ranks_per_gpu: int | None = None) -> int:
    """Convert a `--ranks` value into a number.

    Args:
        word: a number; "auto": one per visible GPU, or 1 with a message if there is none; "gpu": one per GPU; "cpu":
            one per usable core.
        option: the option's name, for messages.
        ranks_per_gpu: ranks that share a GPU, if the user set it: "auto" and "gpu" then give so many per GPU, and a
            number above that for all GPUs is an error.

    Raises:
        ConfigError: an unknown word, a number below 1 or above `MAX_RANKS`, "gpu" without a GPU, or more ranks than
            the GPUs allow.
    """
    is_number = word.isdecimal() and int(word) > 0
    if word not in {"auto", "gpu", "cpu"} and not is_number:
        raise ConfigError(f"{option} must be a number of at least 1, auto, gpu or cpu, got {word!r}")
    if ranks_per_gpu is not None:
        return _count_sharers(word, option, ranks_per_gpu)
    if is_number:
        if int(word) > MAX_RANKS:
            raise ConfigError(f"{option} {word}: a machine runs at most {MAX_RANKS:,} ranks; use --nnodes for more")
        return int(word)
    if word == "cpu":
        return num_usable_cores()
    gpus = num_visible_gpus()
    if gpus == 0 and word == "gpu":
        raise ConfigError(
            f"{option} gpu: no GPU is visible here (driver, CUDA_VISIBLE_DEVICES); use {option} N for N ranks on CPU"
        )
    if gpus == 0:
        print(f"rankwise: no GPU is visible, starting 1 rank ({option} N starts N ranks on CPU)", file=sys.stderr)  # noqa: T201
    return max(1, gpus)


def _count_sharers(word: str, option: str, ranks_per_gpu: int) -> int:
    gpus = num_visible_gpus()
    if gpus == 0 or word == "cpu":
        raise ConfigError(
            f"--ranks-per-gpu {ranks_per_gpu} needs GPUs, but {'none is visible here' if gpus == 0 else option}"
            f"{'' if gpus == 0 else ' cpu uses none'}: leave it out for ranks on CPU"
        )
    wanted = int(word) if word.isdecimal() else gpus * ranks_per_gpu
    if wanted > gpus * ranks_per_gpu:
        raise ConfigError(
            f"{option} {wanted} with --ranks-per-gpu {ranks_per_gpu} needs {-(-wanted // ranks_per_gpu)} GPUs, "
            f"{gpus} are visible: at most {gpus * ranks_per_gpu} ranks, or --ranks-per-gpu {-(-wanted // gpus)}"
        )
    return wanted


def num_usable_cores() -> int:
    """Return the number of cores in the affinity mask, or the container's CPU quota if that is smaller; at least 1."""
    return usable_cores(len(cpu_mask()))


def num_visible_gpus() -> int:
    """Return the number of NVIDIA GPUs that a rank would see; CUDA_VISIBLE_DEVICES is respected."""
    present = _num_present_gpus()
    return len(_listed(os.environ.get("CUDA_VISIBLE_DEVICES"), present)) if present else 0


def _listed(visible: str | None, present: int) -> list[str]:
    """Return the visible devices as CUDA does: it ignores the first invalid entry and all entries after it."""
    if visible is None:
        return [str(index) for index in range(present)]
    entries = map(str.strip, visible.split(","))
    names = ("GPU-", "MIG-")
    return list(itertools.takewhile(lambda e: e.startswith(names) or (e.isdecimal() and int(e) < present), entries))


def _num_present_gpus() -> int:
    nodes = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if _NVIDIA.is_dir() and nodes:
        return min(nodes, sum(1 for _ in _NVIDIA.iterdir()))  # a container may have fewer device nodes
    if not nodes and not _DXG.exists():
        return 0
    import shutil
    import subprocess

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", listing, flags=re.MULTILINE))


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
    siblings = {}
    for thread in sorted(threads):
        listed = _read(sys_root / f"devices/system/cpu/cpu{thread}/topology/thread_siblings_list", parse_cpu_list)
        siblings[thread] = tuple(sorted({thread, *(threads & (listed or set()))}))
    nodes = {}
    for folder in (sys_root / "devices/system/node").glob("node[0-9]*"):
        here = threads & (_read(folder / "cpulist", parse_cpu_list) or set())
        if here:
            nodes[int(folder.name.removeprefix("node"))] = here
    if set().union(*nodes.values()) != threads:  # sysfs is missing or incomplete: do not use its nodes
        nodes = {0: threads}
    order = {thread: (siblings[thread][0], thread) for thread in threads}
    return Topology(
        nodes={number: tuple(sorted(here, key=order.__getitem__)) for number, here in sorted(nodes.items())},
        siblings=siblings,
        gpus=tuple(_gpus(sys_root, nvidia, os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible)),
    )


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


def _read(path: Path, parse: Callable[[str], _Read]) -> _Read | None:
    """Return what a file of the kernel says, None if it cannot be read."""
    try:
        return parse(path.read_text())
    except (OSError, ValueError):
        return None


def _gpus(sys_root: Path, nvidia: Path, visible: str | None) -> Iterator[int | None]:
    """Yield the node of each visible GPU, in the driver's PCI bus order; CUDA's order is the same for equal GPUs."""
    present = sorted(nvidia.iterdir()) if nvidia.is_dir() else []
    uuids = {folder: _read(folder / "information", _UUID.findall) or [folder.name] for folder in present}
    for entry in _listed(visible, len(present)):
        named = [folder for folder in present if uuids[folder][0].startswith(entry)]
        found = [present[int(entry)]] if entry.isdecimal() else named
        address = found[0].name.lower() if len(found) == 1 else ""
        node = _read(sys_root / "bus/pci/devices" / address / "numa_node", int)
        yield node if node is not None and node >= 0 else None  # -1: the firmware does not report it
