"""A line that is redrawn in place on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

_BAR = range(6, 21)


class LiveLine:
    """One line at the bottom of a terminal: head, bar, tail; cut to the width.

    Only `draw` draws it: there is no thread, which could draw while the script forks or prints.

    Args:
        file: the terminal.
    """

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=file)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._console.show_cursor()  # Live hides it, and a killed process would leave the terminal without one

    def draw(self, head: str, tail: Sequence[tuple[int, str]], share: float | None) -> None:
        """Replace the line.

        Args:
            head: text before the bar.
            tail: (rank, text) of the texts after the bar; on a narrow terminal, high ranks are dropped first.
            share: progress of the bar, 0 to 1; None for no bar.
        """
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # leave the last column free: some terminals wrap after it
        text, bar_width = fitted(head, tail, self._console.width - 1)
        line = Table.grid(padding=(0, 1))
        cells = [Text(head, no_wrap=True, overflow="crop"), Text(text, no_wrap=True, overflow="crop")]
        if share is not None and bar_width:
            cells.insert(1, ProgressBar(total=1.0, completed=share, width=bar_width))  # type: ignore[arg-type]
        line.add_row(*cells)
        self._live.update(line, refresh=True)

    def print(self, text: str) -> None:
        """Print a line above the live line."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Keep the line and move the cursor below it."""
        self._live.stop()


def fitted(head: str, tail: Sequence[tuple[int, str]], width: int) -> tuple[str, int]:
    """Return the tail and the width of the bar (0 for none) that fit into `width` columns beside `head`."""
    kept = list(tail)
    while True:
        for between in ("  ", " "):
            text = between.join(part for _, part in kept)
            room = width - len(head) - len(text) - 2
            if room >= _BAR.start:
                return text, min(room, _BAR[-1])
            if room >= -1 or not kept:
                return text, 0
        kept.remove(max(kept))
