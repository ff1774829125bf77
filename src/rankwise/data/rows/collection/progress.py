"""`Progress`: how far the writing of a collection is, on a terminal."""

from __future__ import annotations

import sys
from typing import Any, Self

__all__ = ["Progress"]


class Progress:
    """Two lines with rows, rate and time left: reading the inputs, and writing the datasets.

    Args:
        num_rows: rows of the inputs.
        enabled: whether it is shown; None = where stderr is a terminal.
    """

    def __init__(self, num_rows: int, *, enabled: bool | None = None) -> None:
        self._num_rows = num_rows
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._enabled:
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
                name: self._bars.add_task(words, total=self._num_rows, rate="")
                for name, words in (("spilled", "reading"), ("written", "writing"))
            }
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def step(self, **rows: float) -> None:
        """Say that so many more rows were ``spilled`` or ``written``."""
        if self._bars is None:
            return
        for name, count in rows.items():
            task = self._tasks[name]
            self._bars.advance(task, count)
            speed = self._bars.tasks[task].speed
            self._bars.update(task, rate=f"{speed:,.0f} rows/s" if speed else "")
