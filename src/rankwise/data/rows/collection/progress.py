"""`Progress`: shows how far the write of a collection is, on a terminal or in a log."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from rankwise.data.rows.collection.journal import put_json, work_folder

PROGRESS = "progress"  # file in the work folder

_EVERY_S = 10.0
_LOOK_S = 0.3
_LINES = {"spilled": "reading", "written": "writing"}


class Progress:
    """Rows done, rate and time left of two phases: reading inputs, and writing datasets.

    On a terminal they are bars; without one, a line on stderr at most every ten seconds, and at the end of each phase.
    The file `told` tells the process which started the ranks how far they are.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        enabled: bool | None = None,
        told: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_rows, self._told, self._clock, self._said_s = num_rows, told, clock, clock()
        self._enabled = _is_shown(enabled=enabled)
        self._counts: dict[str, float] = {}
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._begun: dict[str, tuple[float, float]] = {}  # for each phase, time and rows at its first line
        self._ended: set[str] = set()  # phases whose last line was printed

    def __enter__(self) -> Self:
        if self._enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._tasks = {
                name: self._bars.add_task(words, total=self._num_rows, rate="") for name, words in _LINES.items()
            }
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def finish(self) -> None:
        """Show that all rows are written."""
        for name in _LINES:
            self.show(name, self._num_rows)

    def show(self, name: str, rows: float) -> None:
        """Show how many rows are ``spilled`` or ``written``; other phases are too short for a line."""
        if name not in _LINES:
            return
        if self._told is not None and self._counts.get(name) != rows:
            self._counts[name] = rows
            put_json(self._told, {"num_rows": self._num_rows, **self._counts})
        if self._bars is not None:
            task = self._tasks[name]
            self._bars.update(task, completed=rows)
            speed = self._bars.tasks[task].speed
            self._bars.update(task, rate=f"{speed:,.0f} rows/s" if speed else "")
        elif self._enabled:
            self._print(name, rows)

    def _print(self, name: str, rows: float) -> None:
        now_s = self._clock()
        since_s, first = self._begun.setdefault(name, (now_s, rows))
        ends = rows >= self._num_rows
        if name in self._ended or (not ends and now_s - self._said_s < _EVERY_S):
            return
        self._said_s = now_s
        if ends:
            self._ended.add(name)
        rate = (rows - first) / (now_s - since_s) if now_s > since_s else 0.0
        facts = [f"{_LINES[name]} {rows:,.0f}/{self._num_rows:,} rows"]
        if rate:
            left_s = round((self._num_rows - rows) / rate)
            facts += [f"{rate:,.0f} rows/s", f"{dt.timedelta(seconds=left_s)} left"]
        sys.stderr.write(", ".join(facts) + "\n")
        sys.stderr.flush()


def _is_shown(*, enabled: bool | None) -> bool:
    if sys.stderr is None:  # in a process started with `2>&-`
        return False
    return sys.stderr.isatty() if enabled is None else enabled


@contextlib.contextmanager
def watched_progress(folder: Path, *, enabled: bool | None = None) -> Iterator[None]:
    """Show the progress of processes that this one started to write a collection; None = on a terminal."""
    if not _is_shown(enabled=enabled):
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(work_folder(folder), done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(work: Path, done: threading.Event) -> None:
    with contextlib.ExitStack() as stack:
        shown: Progress | None = None
        while not done.wait(_LOOK_S):
            with contextlib.suppress(OSError):  # no progress yet, or the file was just removed: all is written
                counts = json.loads((work / PROGRESS).read_bytes())
                num_rows = counts.pop("num_rows")
                shown = shown or stack.enter_context(Progress(num_rows, enabled=True))
                for name, rows in counts.items():
                    shown.show(name, rows)
        if shown is not None and not work.exists():
            shown.finish()
