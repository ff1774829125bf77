"""How many cores and GPUs this process may use, found without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rankwise.errors import ConfigError

__all__ = ["count_ranks", "num_usable_cores", "num_visible_gpus"]

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_DXG = Path("/dev/dxg")  # NVIDIA under Windows' Linux


def count_ranks(word: str, option: str) -> int:
    """Turn a wish for ranks into a number.

    Args:
        word: a number; "auto": one per visible GPU, or 1 (said) where there is none; "gpu": one per GPU; "cpu": one
            per usable core.
        option: how the caller calls it, for messages.

    Raises:
        ConfigError: another word, a number below 1, or "gpu" without a GPU.
    """
    if word.isdigit() and int(word) > 0:
        return int(word)
    if word == "cpu":
        return num_usable_cores()
    if word not in {"auto", "gpu"}:
        raise ConfigError(f"{option} takes a number from 1, auto, gpu or cpu; got {word!r}")
    gpus = num_visible_gpus()
    if gpus == 0 and word == "gpu":
        raise ConfigError(
            f"{option} gpu: no GPU is visible here (driver, CUDA_VISIBLE_DEVICES); a number starts so many on CPU"
        )
    if gpus == 0:
        print(f"rankwise: no GPU is visible, starting 1 rank ({option} N starts N of them on CPU)", file=sys.stderr)  # noqa: T201
    return max(1, gpus)


def num_usable_cores() -> int:
    """Return the cores of the affinity mask, or of the container's CPU quota where that is smaller; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_QUOTA.read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no quota ("max"), or no cgroup of version 2
    return cores


def num_visible_gpus() -> int:
    """Return the number of NVIDIA GPUs that a rank would see, CUDA_VISIBLE_DEVICES counted in."""
    present = _num_present_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or present == 0:
        return present
    return _num_listed(visible, present)


def _num_listed(visible: str, present: int) -> int:
    """Count as CUDA does: the list ends at the first entry that names no device."""
    count = 0
    for entry in visible.split(","):
        word = entry.strip()
        known = word.startswith(("GPU-", "MIG-")) or (word.isdigit() and int(word) < present)
        if not known:
            break
        count += 1
    return count


def _num_present_gpus() -> int:
    nodes = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if _NVIDIA.is_dir() and nodes:
        return min(nodes, sum(1 for _ in _NVIDIA.iterdir()))  # a container may see fewer nodes than the driver has
    tool = shutil.which("nvidia-smi")
    if tool is None or not (_DXG.exists() or nodes):
        return 0
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", listing, flags=re.MULTILINE))
