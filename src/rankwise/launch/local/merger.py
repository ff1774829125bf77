"""The same line from several ranks, shown once with their ranks: `[0-3] text`."""

from __future__ import annotations

import bisect
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from rankwise.launch.local.console import Console
from rankwise.launch.topology import format_numbers

__all__ = ["Merger", "Voice"]

WINDOW_S = 0.3  # how long a line waits for others to say the same
_MAX_LINES = 1000  # that wait; who writes faster is not held up
_MAX_BYTES = 1 << 20


@dataclass(kw_only=True, slots=True)
class _Line:
    text: bytes
    due_s: float
    ranks: list[int] = field(default_factory=list)


class Merger:
    """Holds lines of one stream back for a moment, so that those that say the same become one.

    What a rank writes keeps its order; lines of different ranks come in the order in which each was first said.

    Args:
        stream: "out" or "err".
        console: where the lines go.
        ranks: who may write; a line that all of them have said waits no longer.
    """

    def __init__(self, stream: str, console: Console, ranks: Collection[int]) -> None:
        self.stream = stream
        self._console, self._num_ranks = console, len(ranks)
        self._lines: dict[int, _Line] = {}  # by number, in order
        self._numbers: dict[bytes, list[int]] = {}  # of the waiting lines with this text
        self._last = dict.fromkeys(ranks, -1)  # number of the last line that a rank has said
        self._count = self._num_bytes = 0

    def line(self, rank: int, text: bytes) -> None:
        """Take a line of a rank, without its end."""
        same = self._numbers.setdefault(text, [])
        # only one that comes after all that this rank has said before: its order stays
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
        """Seconds until a line should be shown although not all have said it; None: nothing waits."""
        if not self._lines:
            return None
        return max(0.0, next(iter(self._lines.values())).due_s - time.monotonic())

    def show_due(self) -> None:
        """Show the lines whose time has come."""
        self._show_ready()

    def show_until(self, rank: int) -> None:
        """Show all that a rank has said, and what comes before: it goes on with something that cannot wait."""
        while self._lines and next(iter(self._lines)) <= self._last[rank]:
            self._show_first()

    def flush(self) -> None:
        """Show everything."""
        while self._lines:
            self._show_first()


class Voice:
    """A merger as a rank's pump sees it: like a console.

    Args:
        merger: of the rank's stream.
        console: where what cannot wait goes: progress bars, prompts, unfinished lines.
        rank: whose.
        prefix: that the pump puts before lines, and that the merger replaces.
    """

    def __init__(self, merger: Merger, console: Console, rank: int, prefix: bytes) -> None:
        self._merger, self._console, self._rank, self._prefix = merger, console, rank, prefix
        self._in_line = False  # what was last passed on has not ended its line

    def line(self, _stream: str, line: bytes) -> None:
        """Take a whole line."""
        self._merger.line(self._rank, line.removeprefix(self._prefix))

    def raw(self, stream: str, data: bytes) -> None:
        """Take bytes: whole plain lines may wait for others, all else is passed on at once."""
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
