"""The supervisor's own stdout and stderr, on which whole lines of many ranks meet."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque

__all__ = ["Console"]

_FDS = {"out": 1, "err": 2}
_LIMIT_BYTES = 1 << 20  # that wait for a reader, of one console
_SLICE_BYTES = 4096  # what a pipe takes at once: how much of a slow reader's progress is seen
_STALL_S = 5.0  # without any progress: nobody reads
_LOOK_S = 0.25  # what one look at a standstill counts at most


class Console:
    """Writes lines and raw bytes to this process's stdout and stderr, and never waits for who reads them.

    Who reads may have stopped (a pager, Ctrl-S, a frozen ssh): the supervisor must hear of signals and deaths all the
    same. So a thread of its own writes. A reader that is slow makes the ranks wait (`is_full`), as it does those that
    run alone; what comes while nobody reads is dropped beyond a megabyte, and how much is said in its place. Our own
    messages are never dropped. A terminal that has gone for good is forgotten; the run goes on.
    """

    def __init__(self) -> None:
        self._in_line = {"out": False, "err": False}
        # in one order where both end in the same place; else one that is blocked does not hold up the other
        out = _Outlet()
        self._outlets = {"out": out, "err": out if _is_same(1, 2) else _Outlet()}

    def is_terminal(self, stream: str) -> bool:
        """Whether "out" or "err" is a terminal."""
        try:
            return os.isatty(_FDS[stream])
        except OSError:
            return False

    def is_full(self, stream: str) -> bool:
        """Whether its reader is behind, but reads: then who writes to it should wait."""
        return self._outlets[stream].is_full()

    def raw(self, stream: str, data: bytes) -> None:
        """Write bytes as they are; they may end in the middle of a line."""
        if data:
            self._outlets[stream].put(_FDS[stream], data)
            self._in_line[stream] = data[-1:] not in b"\r\n"

    def line(self, stream: str, line: bytes, *, ours: bool = False) -> None:
        """Write one line, on a line of its own; our own are never dropped."""
        text = line if line.endswith(b"\n") else line + b"\n"
        self._outlets[stream].put(_FDS[stream], b"\n" + text if self._in_line[stream] else text, must=ours)
        self._in_line[stream] = False

    def say(self, text: str) -> None:
        """Write a message of the supervisor itself to stderr; every line of it names the speaker."""
        for line in text.splitlines():
            self.line("err", f"rankwise: {line}".encode(), ours=True)

    def block(self, text: str) -> None:
        """Write a text to stderr as it is."""
        self.line("err", text.encode("utf-8", "backslashreplace"), ours=True)

    def flush(self) -> None:
        """Wait until everything is written, or until a Ctrl-C; for the end, when nothing else can happen."""
        with contextlib.suppress(KeyboardInterrupt):
            for outlet in self._outlets.values():
                outlet.flush()


class _Outlet:
    """What waits to be written to one place, and the thread that writes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._num_bytes = self._num_dropped = 0
        self._idle_s = self._looked_s = 0.0  # for how long nothing was written, and when that was last looked at
        self._thread: threading.Thread | None = None
        self._lost: set[int] = set()

    def put(self, fd: int, data: bytes, *, must: bool = False) -> None:
        with self._changed:
            if fd in self._lost:
                return
            if self._num_bytes >= _LIMIT_BYTES and self._is_stalled() and not must:
                self._num_dropped += len(data)
                return
            self._note_dropped(fd)
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
        if alone:  # nothing else can happen any more, so this thread may wait for the reader
            self._write(until_empty=True)

    def _start(self) -> None:
        """Have a thread that writes; holds the lock."""
        if self._thread is not None or not self._queue:
            return
        # a daemon: a reader that has stopped must not keep the program
        thread = threading.Thread(target=self._write, name="rankwise-console", daemon=True)
        try:
            thread.start()  # does not wait for what the thread does first, which is to ask for the lock
        except RuntimeError:  # the system has no more threads, which the run must survive: the next line tries again
            return
        self._thread = thread

    def _append(self, fd: int, data: bytes) -> None:
        if not self._num_bytes:
            self._idle_s, self._looked_s = 0.0, time.monotonic()
        self._queue.append((fd, data))
        self._num_bytes += len(data)

    def _note_dropped(self, fd: int) -> None:
        """Say at the place of what was dropped how much it was."""
        dropped, self._num_dropped = self._num_dropped, 0
        if dropped:
            text = f"\nrankwise: {dropped:,} bytes of output are left out here: nobody read the console\n"
            self._append(fd, text.encode())

    def _is_stalled(self) -> bool:
        # time that nobody looked at does not count: the machine may have slept, or had no core for us
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
                    self._note_dropped(fd)
                self._changed.notify_all()

    def _write_slice(self, fd: int, data: bytes) -> None:
        """Write a piece; once the reader has gone, write nothing more (the run and its logs go on)."""
        num_bytes = len(data)
        while data and fd not in self._lost:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                select.select([], [fd], [], 1.0)  # another program made our terminal non-blocking
            except OSError:
                self._lost.add(fd)
        with self._changed:
            self._num_bytes -= num_bytes
            self._idle_s, self._looked_s = 0.0, time.monotonic()


def _is_same(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
