"""The sink that every run has: JSON lines in the run directory."""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rankwise.errors import RunDirError
from rankwise.tracking.metrics_file import append_line, encode_line, open_lines, read_metrics, repair_tail

__all__ = ["JsonlSink"]


class JsonlSink:
    """Appends one line per log step to a file; with `hold_s` of 0 each is on its way to the disk when `log` returns.

    Args:
        path: the file; a torn last line is cut off first.
        attempt: number of this attempt; None takes the one after the last in the file.
        fence: entered to open the file; raises when another attempt owns it.
        is_undisturbed: whether what the fence has seen still holds, so that a line needs no other; None: never.
        hold_s: lines that follow one another faster wait for each other, and are written together: at the first one
            that comes so many seconds after the last write, by `flush` and by `close`. What a kill takes of them is of
            these last seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempt: int | None = None,
        fence: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        is_undisturbed: Callable[[], bool] | None = None,
        hold_s: float = 0.0,
    ) -> None:
        self._path = path
        self._fence = fence
        self._is_undisturbed = is_undisturbed
        self._hold_s, self._written_s = hold_s, -math.inf
        self._held: list[tuple[Mapping[str, Any], Mapping[str, float]]] = []
        self._open: list[int] = []
        self._release = weakref.finalize(self, _close, self._open)
        with fence():
            repair_tail(path)
        if attempt is None:
            attempt = 1 + max((line["attempt"] for line in read_metrics(path, all=True)), default=0)
        self.attempt = attempt

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Write the line that supersedes what earlier attempts logged past `restored_step`."""
        record = {"event": "attempt", "attempt": attempt, "restored_step": restored_step, "time": time.time()}
        self._append(encode_line(record, {}))

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Write one line."""
        record = {"step": step, "epoch": None, **tags, "attempt": self.attempt, "time": time.time()}
        self._held.append((record, values))
        if time.monotonic() - self._written_s >= self._hold_s:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait for others.

        Raises:
            FencedError: a newer attempt owns the run; they are dropped.
        """
        held, self._held = self._held, []
        if held:
            self._append(b"".join(encode_line(record, values) for record, values in held))
            self._written_s = time.monotonic()

    def close(self) -> None:
        """Write what waits, unless another attempt owns the run by now, and close the file."""
        with contextlib.suppress(RunDirError):  # its `log` would have said so; whoever closes may have met worse
            self.flush()
        _close(self._open)

    def _append(self, lines: bytes) -> None:
        # Between the look and the write another attempt may begin: its first line says that ours no longer count. The
        # open file is the one that was looked at: a run that is moved away takes it along.
        if self._open and self._is_undisturbed is not None and self._is_undisturbed():
            append_line(self._open[0], lines)
            return
        with self._fence():
            _close(self._open)  # a network file system shows others what was written before
            self._open.append(open_lines(self._path))
            append_line(self._open[0], lines)
        if self._is_undisturbed is None:
            _close(self._open)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
