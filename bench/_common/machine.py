"""The machine that a benchmark ran on, and the CPU time and memory of processes."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import resource
import time
from pathlib import Path

PACKAGES = ("rankwise", "numpy", "numba", "numcodecs", "zarr", "zarrs", "tensorstore", "torch")
_SCHED_CLOCK = 2  # the kind of clock that counts run time, in the numbering of Linux's CPU clocks


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def model() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def versions() -> dict[str, str]:
    """Versions of what is compared; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe() -> dict[str, object]:
    """Hardware, load and versions."""
    return {
        "processor": model(),
        "cores": cores(),
        "load": load(),
        "kernel": platform.release(),
        "versions": versions(),
    }


def cpu_s(children: tuple[int, ...] = ()) -> float:
    """CPU seconds of all threads of this process and of running children; Linux counts them in nanoseconds."""
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | _SCHED_CLOCK) for pid in children)


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def restart_peak() -> int:
    """Let the peak of this process begin anew where Linux allows it; return what it holds."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()


def peak_bytes() -> int:
    """Most memory that this process held since `restart_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next((line for line in lines if line.startswith("VmHWM")), None)
    return int(found.split()[1]) * 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
