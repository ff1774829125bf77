"""Show the same line from several ranks once, with their ranks: `[0-3] text`."""

from __future__ import annotations

import bisect
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from rankwise.launch.hardware import format_numbers
from rankwise.launch.local.console import Console

__all__ = ["Merger", "Voice"]

WINDOW_S = 0.3  # how long a line waits for the same line from other ranks
_MAX_LINES = 1000  # waiting lines; beyond that, lines are shown at once
_MAX_BYTES = 1 << 20


@dataclass(kw_only=True, slots=True)
class _Line:
    text: bytes
    due_s: float
    ranks: list[int] = field(default_factory=list)


class Merger:
    """Holds lines of one stream back for a moment, and merges equal lines of several ranks.

    Lines of one rank keep their order; lines of different ranks are ordered by when each was first written.

    Args:
        stream: "out" or "err".
        console: where the lines go.
        ranks: the ranks that may write; a line that all of them have written is shown at once.
    """

    def __init__(self, stream: str, console: Console, ranks: Collection[int]) -> None:
        self.stream = stream
        self._console, self._num_ranks = console, len(ranks)
        self._lines: dict[int, _Line] = {}  # line number -> line, in order
        self._numbers: dict[bytes, list[int]] = {}  # text -> numbers of the waiting lines with it
        self._last = dict.fromkeys(ranks, -1)  # rank -> number of its last line
        self._count = self._num_bytes = 0

    def line(self, rank: int, text: bytes) -> None:
        """Take a line of a rank, without its newline."""
        same = self._numbers.setdefault(text, [])
        # merge only with a line after this rank's last one, which keeps the rank's order
        found = bisect.bisect_right(same, self._last[rank])
        if found == len(same):
            self._append(text)
        number = same[found]
        self._last[rank] = number
        self._lines[number].ranks.append(rank)
        self._show_ready()

    def _append(self, text: bytes) -> None:
        number, self._count = self._count, self._count + 1
        self._lines[number] = _Line(text=text, due_s=time.monotonic() + WINDOW_S)
        self._numbers[text].append(number)
        self._num_bytes += len(text)

    def _show_ready(self) -> None:
        while self._lines:
            first = next(iter(self._lines.values()))
            full = len(self._lines) > _MAX_LINES or self._num_bytes > _MAX_BYTES
            if len(first.ranks) < self._num_ranks and not full and time.monotonic() < first.due_s:
                return
            self._show_first()

    def _show_first(self) -> None:
        number = next(iter(self._lines))
        line = self._lines.pop(number)
        same = self._numbers[line.text]
        same.remove(number)
        if not same:
            del self._numbers[line.text]
        self._num_bytes -= len(line.text)
        prefix = b"" if line.ranks == [0] else f"[{format_numbers(line.ranks)}] ".encode()
        self._console.line(self.stream, prefix + line.text)

    def waits_s(self) -> float | None:
        """Return the seconds until a line is shown although some ranks have not written it; None: no line waits."""
        if not self._lines:
            return None
        return max(0.0, next(iter(self._lines.values())).due_s - time.monotonic())

    def show_due(self) -> None:
        """Show the lines whose waiting time is over."""
        self._show_ready()

    def show_until(self, rank: int) -> None:
        """Show all lines up to the rank's last one, before output of the rank that cannot wait."""
        while self._lines and next(iter(self._lines)) <= self._last[rank]:
            self._show_first()

    def flush(self) -> None:
        """Show all lines."""
        while self._lines:
            self._show_first()


class Voice:
    """A rank's access to a merger, with the interface of a console.

    Args:
        merger: the merger of the rank's stream.
        console: takes output that cannot wait: progress bars, prompts, unfinished lines.
        rank: the rank.
        prefix: the prefix that the pump puts before lines, and that the merger replaces.
    """

    def __init__(self, merger: Merger, console: Console, rank: int, prefix: bytes) -> None:
        self._merger, self._console, self._rank, self._prefix = merger, console, rank, prefix
        self._in_line = False  # the output passed on last did not end its line

    def line(self, _stream: str, line: bytes) -> None:
        """Take a whole line."""
        self._merger.line(self._rank, line.removeprefix(self._prefix))

    def raw(self, stream: str, data: bytes) -> None:
        """Take bytes: plain whole lines go to the merger, all else goes to the console at once."""
        head, end, tail = data.rpartition(b"\n")
        if not self._in_line and end and b"\r" not in head.replace(b"\r\n", b"\n") and b"\x1b" not in head:
            for line in head.split(b"\n"):
                self._merger.line(self._rank, line)
        else:
            tail = data
        if tail:
            self._merger.show_until(self._rank)
            self._console.raw(stream, tail)
            self._in_line = not tail.endswith(b"\n")

    def say(self, text: str) -> None:
        """Pass on a message of the supervisor."""
        self._console.say(text)
