"""The sink that every run has: JSON lines in the run directory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rankwise.tracking.metrics_file import append_line, encode_line, read_metrics, repair_tail

__all__ = ["JsonlSink"]


class JsonlSink:
    """Appends one line per log step to a file; each line is on its way to the disk when `log` returns.

    Args:
        path: the file; a torn last line is cut off first.
        attempt: number of this attempt; None takes the one after the last in the file.
        fence: entered around every line; raises when another attempt owns the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempt: int | None = None,
        fence: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._path = path
        self._fence = fence
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
        self._append(encode_line(record, values))

    def close(self) -> None:
        """Do nothing: no line is ever held back."""

    def _append(self, line: bytes) -> None:
        with self._fence():
            append_line(self._path, line)
