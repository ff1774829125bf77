"""How many cores and GPUs this process may use, found without torch."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from rankwise._process.cores import cpu_mask, usable_cores
from rankwise.errors import ConfigError

__all__ = ["count_ranks", "num_usable_cores", "num_visible_gpus"]

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_DXG = Path("/dev/dxg")  # NVIDIA under WSL


def count_ranks(word: str, option: str, *, ranks_per_gpu: int | None = None) -> int:
    """Convert a `--ranks` value into a number.

    Args:
        word: a number; "auto": one per visible GPU, or 1 with a message if there is none; "gpu": one per GPU; "cpu":
            one per usable core.
        option: the option's name, for messages.
        ranks_per_gpu: ranks that share a GPU, if the user set it: "auto" and "gpu" then give so many per GPU, and a
            number above that for all GPUs is an error.

    Raises:
        ConfigError: an unknown word, a number below 1, "gpu" without a GPU, or more ranks than the GPUs allow.
    """
    is_number = word.isdigit() and int(word) > 0
    if word not in {"auto", "gpu", "cpu"} and not is_number:
        raise ConfigError(f"{option} takes a number from 1, auto, gpu or cpu; got {word!r}")
    if ranks_per_gpu is not None:
        return _count_sharers(word, option, ranks_per_gpu)
    if is_number:
        return int(word)
    if word == "cpu":
        return num_usable_cores()
    gpus = num_visible_gpus()
    if gpus == 0 and word == "gpu":
        raise ConfigError(
            f"{option} gpu: no GPU is visible here (driver, CUDA_VISIBLE_DEVICES); a number starts so many on CPU"
        )
    if gpus == 0:
        print(f"rankwise: no GPU is visible, starting 1 rank ({option} N starts N of them on CPU)", file=sys.stderr)  # noqa: T201
    return max(1, gpus)


def _count_sharers(word: str, option: str, ranks_per_gpu: int) -> int:
    gpus = num_visible_gpus()
    if gpus == 0 or word == "cpu":
        raise ConfigError(
            f"--ranks-per-gpu {ranks_per_gpu} is about GPUs, and {'none is visible here' if gpus == 0 else option}"
            f"{'' if gpus == 0 else ' cpu is not'}: leave it out for ranks on CPU"
        )
    wanted = int(word) if word.isdigit() else gpus * ranks_per_gpu
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
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or present == 0:
        return present
    return _num_listed(visible, present)


def _num_listed(visible: str, present: int) -> int:
    """Count devices as CUDA does: it ignores the first invalid entry and all entries after it."""
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
