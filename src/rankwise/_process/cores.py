"""Resources of this process: cores by affinity mask and CPU quotas, cgroups, threads; imports little."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankwise.errors import ConfigError

__all__ = ["choose_threads", "cpu_mask", "group_folders", "usable_cores"]

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
    return max(1, min(num_cores, *(int(quota) for quota in _quotas(groups, own)), num_cores))


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
    if not text.isdigit() or int(text) < 1:
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


def _quotas(groups: Path, own: Path) -> Iterator[float]:
    """Yield the CPU quotas of this process, in cores."""
    for folder, version in group_folders("cpu", groups, own):
        with contextlib.suppress(OSError, ValueError):
            yield _version_1(folder) if version == 1 else _version_2(folder)


def _version_2(group: Path) -> float:
    quota, period = (group / "cpu.max").read_text().split()
    return int(quota) / int(period)  # "max" raises: it is no number


def _version_1(group: Path) -> float:
    quota = int((group / "cpu.cfs_quota_us").read_text())
    if quota <= 0:
        raise ValueError("no quota")
    return quota / int((group / "cpu.cfs_period_us").read_text())
