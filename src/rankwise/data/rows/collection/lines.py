"""`Lines`: how far something is, for a log: a line now and then."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable

__all__ = ["Lines"]

_EVERY_S = 10.0


class Lines:
    """Prints to stderr how many of all rows are done, their rate and the time left.

    Args:
        num_rows: all rows.
        clock: seconds.
    """

    def __init__(self, num_rows: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_rows, self._clock, self._said_s = num_rows, clock, clock()
        self._begun: dict[str, tuple[float, float]] = {}  # of each thing the time and the rows at its first time
        self._ended: set[str] = set()

    def show(self, words: str, rows: float) -> None:
        """Say how far it is: at most every ten seconds, and at the end.

        Args:
            words: what is done, such as "reading".
            rows: how many.
        """
        now_s = self._clock()
        since_s, first = self._begun.setdefault(words, (now_s, rows))
        ends = rows >= self._num_rows
        if words in self._ended or (not ends and now_s - self._said_s < _EVERY_S):
            return
        self._said_s = now_s
        if ends:
            self._ended.add(words)
        rate = (rows - first) / (now_s - since_s) if now_s > since_s else 0.0
        facts = [f"{words} {rows:,.0f}/{self._num_rows:,} rows"]
        if rate:
            left_s = round((self._num_rows - rows) / rate)
            facts += [f"{rate:,.0f} rows/s", f"{dt.timedelta(seconds=left_s)} left"]
        sys.stderr.write(", ".join(facts) + "\n")
        sys.stderr.flush()
