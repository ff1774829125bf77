"""Find out from the kernel log and the cgroup counters whether the OOM killer killed a rank."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from rankwise._process.cores import group_folders

__all__ = ["OomWatch"]

_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_SLACK_S = 1.0  # tolerated difference between the log's clock and this one


class OomWatch:
    """Compares the OOM kill counters of this process's cgroups, which its ranks share, with their values at creation.

    Args:
        log: the kernel's log, if readable.
    """

    def __init__(self, log: Path = _LOG) -> None:
        self._log, self._begun_s = log, time.monotonic()
        self._before = dict(_kills())

    def evidence(self, pid: int) -> str:
        """Return evidence that the OOM killer killed the process, "" if there is none or it is not readable."""
        for stamp_s, text in self._records():
            if f"Killed process {pid} (" in text and stamp_s > self._begun_s - _SLACK_S:
                return f"the kernel's log says: {text}"
        for folder, number in _kills():
            if number > self._before.get(folder, number):
                return f"control group {folder} has killed for want of memory{_limit(folder)}"
        return ""

    def _records(self) -> Iterator[tuple[float, str]]:
        """Yield the log's entries: seconds since boot, text."""
        with contextlib.suppress(OSError), _opened(self._log) as fd:
            while True:
                try:
                    record = os.read(fd, _RECORD_BYTES)
                except BrokenPipeError:
                    continue  # the entry was overwritten during the read: continue with the oldest one left
                except BlockingIOError:
                    return  # end of the log
                head, _, text = record.partition(b"\n")[0].decode(errors="replace").partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdigit():
                    yield int(fields[2]) / 1e6, text
                elif not record:
                    return


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _kills() -> Iterator[tuple[Path, int]]:
    """Yield the cgroups of this process and their OOM kill counts; for cgroup v2, child groups are included."""
    for folder, version in group_folders("memory"):
        with contextlib.suppress(OSError):
            text = (folder / ("memory.oom_control" if version == 1 else "memory.events")).read_text()
            found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
            if found:
                yield folder, int(found[1])


def _limit(folder: Path) -> str:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return f" (its limit: {int((folder / name).read_text()) / (1 << 20):,.0f} MiB)"
    return ""
