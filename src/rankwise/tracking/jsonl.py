"""The default sink of every run: JSON lines in the run directory."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rankwise.errors import RunDirError
from rankwise.tracking.metrics_file import (
    append_line,
    encode_line,
    is_file_at,
    open_lines,
    read_lines,
    read_metrics,
    repair_tail,
)
from rankwise.tracking.run_dir import RunDir

_log = logging.getLogger("rankwise.tracking")


class JsonlSink:
    """Appends one line per log step to a file; with `hold_s` 0, each line is written when `log` returns.

    Args:
        path: the file; an incomplete last line is removed first.
        run: the run of the file: its fence is entered to open the file. None: the attempt is the one after the last in
            the file.
        hold_s: lines are buffered and written together: by the first line that comes so many seconds after the last
            write, by `flush` and by `close`. A kill loses at most the lines of these last seconds.
    """

    def __init__(self, path: Path, run: RunDir | None, *, hold_s: float) -> None:
        self._path = path
        self._run = run
        self._hold_s, self._written_s = hold_s, -math.inf
        self._held: list[tuple[Mapping[str, Any], Mapping[str, float]]] = []
        self._open: list[int] = []
        self._release = weakref.finalize(self, _close, self._open)
        with self._fence():
            repair_tail(path)
        if run is None:
            self.attempt = 1 + max((line["attempt"] for line in read_metrics(path, all=True)), default=0)
        else:
            self.attempt = run.attempt

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Write the line that invalidates the lines of earlier attempts past `restored_step`."""
        record = {"event": "attempt", "attempt": attempt, "restored_step": restored_step, "time": time.time()}
        self._append(encode_line(record, {}))

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Write one line."""
        record = {"step": step, "epoch": None, **tags, "attempt": self.attempt, "time": time.time()}
        self._held.append((record, values))
        if time.monotonic() - self._written_s >= self._hold_s:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines.

        Raises:
            FencedError: a newer attempt owns the run; the lines are dropped.
        """
        held, self._held = self._held, []
        if held or not self._is_there():
            self._append(b"".join(encode_line(record, values) for record, values in held))
            self._written_s = time.monotonic()

    def close(self) -> None:
        """Write the buffered lines, unless another attempt owns the run now, and close the file."""
        with contextlib.suppress(RunDirError):  # `log` would raise this; another error may be the reason for the close
            self.flush()
        _close(self._open)

    def _append(self, lines: bytes) -> None:
        # Another attempt may begin between the check and the write: its first line invalidates these lines. The open
        # file is the one that was checked: it stays with a run that is moved away.
        try:
            there = self._is_there()
            if there and self._open and self._run is not None and self._run.is_undisturbed():
                append_line(self._open[0], lines)
                return
            with self._fence():
                if not there and not self._path.exists():  # a replaced file is gone on with
                    _log.warning("%s was removed; it is written anew, with all its lines: copy it instead", self._path)
                    lines = read_lines(self._open[0]) + lines
                _close(self._open)  # closing makes the data visible to other clients of a network file system
                self._open.append(open_lines(self._path))
                append_line(self._open[0], lines)
        except OSError as error:  # of a descriptor, which has no name
            error.filename = error.filename or os.fspath(self._path)
            raise
        if self._run is None:
            _close(self._open)

    def _is_there(self) -> bool:
        """Whether nobody has removed or replaced the open file: its lines would be lost."""
        return not self._open or is_file_at(self._open[0], self._path)

    def _fence(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._run is None else self._run.fence()


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
