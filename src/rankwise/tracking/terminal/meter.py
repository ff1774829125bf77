"""Compute the numbers of a progress line from the loop's reports."""

from __future__ import annotations

import resource
import sys
from collections import deque

__all__ = ["Meter", "format_bytes", "format_seconds", "peak_memory"]

# Rates average over this many updates: enough to be stable, few enough to show a slow-down within seconds.
_WINDOW = 50


class Meter:
    """Counts samples and seconds of the recent past.

    Args:
        now_s: the clock at the start, in seconds.
    """

    def __init__(self, now_s: float) -> None:
        self._marks: deque[tuple[float, int, float, int]] = deque([(now_s, 0, 0.0, 0)], maxlen=_WINDOW + 1)

    def add(self, now_s: float, *, samples: int, wait_s: float, step: int) -> None:
        """Count one update: samples and seconds spent waiting for data since the last one."""
        _, all_samples, all_wait_s, _ = self._marks[-1]
        self._marks.append((now_s, all_samples + samples, all_wait_s + wait_s, step))

    def start_at(self, step: int) -> None:
        """Set the first step, so that the rate of a resumed run is right."""
        now_s, samples, wait_s, _ = self._marks.pop()
        self._marks.append((now_s, samples, wait_s, step))

    @property
    def samples_per_s(self) -> float:
        """Return the samples per second over the window."""
        return (self._marks[-1][1] - self._marks[0][1]) / self._span_s

    @property
    def wait_share(self) -> float:
        """Return the share of the time spent waiting for data, 0 to 1."""
        return min(1.0, (self._marks[-1][2] - self._marks[0][2]) / self._span_s)

    def eta_s(self, total_steps: int | None) -> float | None:
        """Return the seconds for the remaining steps, None if unknown."""
        done = self._marks[-1][3] - self._marks[0][3]
        if total_steps is None or done <= 0:
            return None
        return max(0, total_steps - self._marks[-1][3]) * self._span_s / done

    @property
    def _span_s(self) -> float:
        return max(self._marks[-1][0] - self._marks[0][0], 1e-9)


def peak_memory() -> dict[str, int]:
    """Return the peak memory of this process in bytes: "ram", and "gpu" if torch has used a CUDA device."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"ram": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peak["gpu"] = int(torch.cuda.max_memory_allocated())
    return peak


def format_bytes(num_bytes: float) -> str:
    """Return ``"1.2 GiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def format_seconds(seconds: float | None) -> str:
    """Return ``"1:02:03"`` or ``"2:03"``; ``"?"`` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
