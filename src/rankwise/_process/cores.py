"""Resources of this process: cores by affinity mask and CPU quotas, cgroups, threads; imports little."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankwise.errors import ConfigError

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cpu_mask() -> tuple[int, ...]:
    """Return the cores that this process may run on (all cores if the system does not report it)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores(num_cores: int, groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return how many of `num_cores` cores the CPU quotas of a container or batch job allow, at least 1.

    Args:
        num_cores: cores that the process may run on.
        groups: mount point of the cgroups, of version 1 or 2.
        own: file with the cgroups of this process; quotas of their parent groups count too.
    """
    quotas = [num_cores]
    for folder, version in group_folders("cpu", groups, own):
        with contextlib.suppress(OSError, ValueError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()  # a quota of "max" is no number
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:  # -1: no quota
                quotas.append(int(quota) // int(period))
    return max(1, min(quotas))


def choose_threads(requested: int | None, *, environ: Mapping[str, str], cores: int, sharers: int) -> int:
    """Return this rank's number of threads: as requested, else OMP_NUM_THREADS, else its share of the cores; >= 1.

    Args:
        requested: the caller's number, or None.
        environ: the environment.
        cores: cores that this process may use.
        sharers: ranks that share them, this one included.

    Raises:
        ConfigError: `requested` or OMP_NUM_THREADS is not an integer of at least 1.
    """
    if requested is not None:
        if requested < 1:
            raise ConfigError(f"threads must be at least 1, got {requested}")
        return requested
    text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not text:
        return max(1, cores // max(1, sharers))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"OMP_NUM_THREADS must be a number of at least 1, it is {environ['OMP_NUM_THREADS']!r}: unset it"
        )
    return int(text)


def group_folders(kind: str, groups: Path = _GROUPS, own: Path = _OWN) -> Iterator[tuple[Path, int]]:
    """Yield the folders of this process's cgroups of a kind, innermost first, with their version.

    Args:
        kind: "cpu", "memory".
        groups: mount point of the cgroups, of version 1, 2 or both.
        own: file with the cgroups of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and kind not in kinds.split(","):
            continue
        root = next((groups / name for name in (kinds, kind) if kinds and (groups / name).is_dir()), groups)
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            yield place, 1 if kinds else 2
            if place == root:
                break
