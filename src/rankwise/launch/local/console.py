"""The supervisor's own stdout and stderr, to which it writes the ranks' output in whole lines.

The same line from several ranks is shown once, with their ranks: `[0-3] text`.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import select
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from rankwise.launch.hardware import format_numbers

_FDS = {"out": 1, "err": 2}
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_LIMIT_BYTES = 1 << 20  # of output that wait for the console's reader
_SLICE_BYTES = 4096  # what a pipe accepts at once; the unit in which a slow reader's progress is measured
_STALL_S = 5.0  # without progress of the reader: treat it as stopped
_LOOK_S = 0.25  # the most that one check may add to the idle time
WINDOW_S = 0.3  # how long a line waits for the same line from other ranks
_MAX_LINES = 1000  # waiting lines; beyond that, lines are shown at once
_MAX_BYTES = 1 << 20


class Console:
    """Writes lines and raw bytes to this process's stdout and stderr, and never blocks on their reader.

    The reader may have stopped (a pager, Ctrl-S, a frozen ssh), but the supervisor must still react to signals and
    exits. So a separate thread writes. A slow reader makes the ranks wait (`is_full`), as it would without a
    supervisor. While nobody reads, output beyond a megabyte is dropped, and a message says how much. The supervisor's
    own messages are never dropped. If the terminal is closed, writing to it stops and the run goes on.
    """

    def __init__(self) -> None:
        self._in_line = {"out": False, "err": False}
        # if both go to one file, a shared outlet keeps the order; else a blocked stream must not block the other
        out, is_same = _Outlet(), False
        with contextlib.suppress(OSError):
            is_same = os.path.sameopenfile(1, 2)
        self._outlets = {"out": out, "err": out if is_same else _Outlet()}

    def is_terminal(self, stream: str) -> bool:
        """Whether "out" or "err" is a terminal."""
        try:
            return os.isatty(_FDS[stream])
        except OSError:
            return False

    def is_full(self, stream: str) -> bool:
        """Whether the reader is behind but still reads; then writers should wait."""
        return self._outlets[stream].is_full()

    def raw(self, stream: str, data: bytes) -> None:
        """Write bytes unchanged; they may end in the middle of a line."""
        if data:
            self._outlets[stream].put(_FDS[stream], data)
            self._in_line[stream] = data[-1:] not in b"\r\n"

    def line(self, stream: str, line: bytes, *, ours: bool = False) -> None:
        """Write one line, starting on a new line; a line with `ours` is never dropped."""
        text = line if line.endswith(b"\n") else line + b"\n"
        self._outlets[stream].put(_FDS[stream], b"\n" + text if self._in_line[stream] else text, must=ours)
        self._in_line[stream] = False

    def log(self, text: str) -> None:
        """Write a message of the supervisor itself to stderr; every line starts with "rankwise: "."""
        for line in text.splitlines():
            self.line("err", f"rankwise: {line}".encode("utf-8", "backslashreplace"), ours=True)

    def block(self, text: str) -> None:
        """Write a text to stderr unchanged."""
        self.line("err", text.encode("utf-8", "backslashreplace"), ours=True)

    def flush(self) -> None:
        """Wait until everything is written, or until Ctrl-C; to be called last."""
        with contextlib.suppress(KeyboardInterrupt):
            for outlet in self._outlets.values():
                outlet.flush()


def log_text(console: Console, text: str) -> None:
    """Print the first line of a text as a message, and the rest unchanged."""
    first, _, rest = text.partition("\n")
    console.log(first)
    if rest:
        console.block(rest)


class _Outlet:
    """The queue of output for one file, and the thread that writes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._num_bytes = self._num_dropped = 0
        self._idle_s = self._looked_s = 0.0  # time without a write, and when that was last updated
        self._thread: threading.Thread | None = None
        self._lost: set[int] = set()

    def put(self, fd: int, data: bytes, *, must: bool = False) -> None:
        with self._changed:
            if fd in self._lost:
                return
            if self._num_bytes >= _LIMIT_BYTES and self._is_stalled() and not must:
                self._num_dropped += len(data)
                return
            self._append(fd, data)
            self._start()
            self._changed.notify_all()

    def is_full(self) -> bool:
        with self._changed:
            return self._num_bytes >= _LIMIT_BYTES and not self._is_stalled()

    def flush(self) -> None:
        with self._changed:
            self._start()
            alone = self._thread is None
            while self._num_bytes and not alone:
                self._changed.wait(0.2)
        if alone:  # there is no writer thread, and nothing else to do: this thread may block on the reader
            self._write(until_empty=True)

    def _start(self) -> None:
        """Start the writer thread if there is none; the caller holds the lock."""
        if self._thread is not None or not self._queue:
            return
        # a daemon thread: a stopped reader must not keep the process alive
        thread = threading.Thread(target=self._write, name="rankwise-console", daemon=True)
        try:
            thread.start()  # returns without waiting for the new thread, which first acquires the lock held here
        except RuntimeError:  # no more threads: the run must survive that, and the next line tries again
            return
        self._thread = thread

    def _append(self, fd: int, data: bytes = b"") -> None:
        """Queue data, after a note on how many bytes were dropped in this place."""
        dropped, self._num_dropped = self._num_dropped, 0
        if dropped:
            note = f"\nrankwise: {dropped:,} bytes of output were dropped here: nobody read the console\n"
            data = note.encode() + data
        if not data:
            return
        if not self._num_bytes:
            self._idle_s, self._looked_s = 0.0, time.monotonic()
        self._queue.append((fd, data))
        self._num_bytes += len(data)

    def _is_stalled(self) -> bool:
        # cap the time since the last check: the machine may have been suspended, or this process got no CPU time
        now = time.monotonic()
        self._idle_s += min(now - self._looked_s, _LOOK_S)
        self._looked_s = now
        return self._idle_s > _STALL_S

    def _write(self, *, until_empty: bool = False) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if until_empty:
                        return
                    self._changed.wait()
                fd, data = self._queue.popleft()
            for start in range(0, len(data), _SLICE_BYTES):
                self._write_slice(fd, data[start : start + _SLICE_BYTES])
            with self._changed:
                if not self._queue:
                    self._append(fd)
                self._changed.notify_all()

    def _write_slice(self, fd: int, data: bytes) -> None:
        """Write a slice; after the reader has gone, write nothing more (the run and its logs go on)."""
        num_bytes = len(data)
        while data and fd not in self._lost:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                select.select([], [fd], [], 1.0)  # another program made this terminal non-blocking
            except OSError as error:
                self._lost.add(fd)
                if error.errno in _DISK_ERRORS:  # a closed terminal or pipe needs no message
                    name, other = ("stdout", 2) if fd == 1 else ("stderr", 1)
                    text = f"rankwise: {name} cannot be written any more ({error.strerror}): the run and its logs go on"
                    with contextlib.suppress(OSError):
                        os.write(other, f"{text}\n".encode())
        with self._changed:
            self._num_bytes -= num_bytes
            self._idle_s, self._looked_s = 0.0, time.monotonic()


@dataclass(kw_only=True, slots=True)
class _Line:
    text: bytes
    due_s: float
    ranks: list[int] = field(default_factory=list)


class SharedStream:
    """One stream of the console, to which several ranks write: lines of all but rank 0 start with `[rank]`.

    It may hold lines back for a moment, and merge equal lines of several ranks. Lines of one rank keep their order;
    lines of different ranks are ordered by when each was first written.

    Args:
        name: "out" or "err".
        console: where the lines go.
        ranks: the ranks that may write; a line that all of them have written is shown at once.
        merge: merge equal lines, if there are several ranks.

    Attributes:
        merges: whether it does.
    """

    def __init__(self, name: str, console: Console, ranks: Collection[int], *, merge: bool = True) -> None:
        self.name, self.merges = name, merge and len(ranks) > 1
        self._console, self._num_ranks = console, len(ranks)
        self._lines: dict[int, _Line] = {}  # line number -> line, in order
        self._numbers: dict[bytes, list[int]] = {}  # text -> numbers of the waiting lines with it
        self._last = dict.fromkeys(ranks, -1)  # rank -> number of its last line
        self._in_line: set[int] = set()  # ranks whose output that was passed on at once did not end its line
        self._count = self._num_bytes = 0

    def line(self, rank: int, text: bytes) -> None:
        """Take a line of a rank, without its newline."""
        if not self.merges:
            self._show(text, [rank])
            return
        same = self._numbers.setdefault(text, [])
        # merge only with a line after this rank's last one, which keeps the rank's order
        found = bisect.bisect_right(same, self._last[rank])
        if found == len(same):
            self._lines[self._count] = _Line(text=text, due_s=time.monotonic() + WINDOW_S)
            same.append(self._count)
            self._count += 1
            self._num_bytes += len(text)
        number = same[found]
        self._last[rank] = number
        self._lines[number].ranks.append(rank)
        self.show_due()

    def raw(self, rank: int, data: bytes) -> None:
        """Take bytes of a rank: hold plain whole lines back, pass on at once what cannot wait (bars, prompts)."""
        if not self.merges:
            self._console.raw(self.name, data)
            return
        head, end, tail = data.rpartition(b"\n")
        if rank not in self._in_line and end and b"\r" not in head.replace(b"\r\n", b"\n") and b"\x1b" not in head:
            for line in head.split(b"\n"):
                self.line(rank, line)
        else:
            tail = data
        if tail:
            self.flush(rank)
            self._console.raw(self.name, tail)
            if tail.endswith(b"\n"):
                self._in_line.discard(rank)
            else:
                self._in_line.add(rank)

    def show_due(self) -> float | None:
        """Show the lines that all ranks have written, or whose waiting time is over.

        Returns:
            Seconds until the next line is to be shown although some ranks have not written it; None: no line waits.
        """
        while self._lines:
            first = next(iter(self._lines.values()))
            full = len(self._lines) > _MAX_LINES or self._num_bytes > _MAX_BYTES
            wait_s = first.due_s - time.monotonic()
            if len(first.ranks) < self._num_ranks and not full and wait_s > 0:
                return wait_s
            self._show_first()
        return None

    def flush(self, rank: int | None = None) -> None:
        """Show all lines; with a rank those up to its last one, before output of the rank that cannot wait."""
        while self._lines and (rank is None or next(iter(self._lines)) <= self._last[rank]):
            self._show_first()

    def _show_first(self) -> None:
        number = next(iter(self._lines))
        line = self._lines.pop(number)
        same = self._numbers[line.text]
        same.remove(number)
        if not same:
            del self._numbers[line.text]
        self._num_bytes -= len(line.text)
        self._show(line.text, line.ranks)

    def _show(self, text: bytes, ranks: list[int]) -> None:
        prefix = b"" if ranks == [0] else f"[{format_numbers(ranks)}] ".encode()
        self._console.line(self.name, prefix + text)
