"""Forward one stream of one rank to the console and to its log file."""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from pathlib import Path
from typing import BinaryIO

from rankwise.errors import LaunchError
from rankwise.launch.local.console import Console, SharedStream

_READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20  # the largest pipe buffer that an unprivileged process may set
_LINE_BYTES = 1 << 20  # a longer line is shown, and written to a log, in pieces
_STATE_S = 10.0  # how often the current state of a progress bar is shown
_UNFINISHED_S = 0.1  # how long an unfinished line of rank 0 (progress bar, dots, prompt) waits for its rest
_TORN_S = 2.0  # the same after a whole line in the same read: a full buffer may have cut the line anywhere
_LATE_S = 0.25  # a poll that is later than this (a suspended machine) waits `_TORN_S` once more before it splits a line
_FLOOD_BYTES = 4096  # a read of this size is a full write buffer, which the pipe may split anywhere
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


class LogFile:
    """A rank's log file; of a line that is overwritten on a terminal, it keeps the last state.

    Control sequences are removed if the bytes come from a pseudo-terminal. A write error (full disk) is reported once.
    """

    def __init__(self, path: Path, *, from_terminal: bool, console: Console) -> None:
        self._path, self._console, self._from_terminal = path, console, from_terminal
        self._file: BinaryIO | None = path.open("wb", buffering=0)
        self._partial = b""

    def write(self, data: bytes) -> None:
        """Append the rank's output."""
        if self._from_terminal:
            *lines, rest = (self._partial + data).split(b"\n")
            data = b"".join(_settled(line) + b"\n" for line in lines)
            if len(rest) > _READ_BYTES:
                rest = rest.rpartition(b"\r")[2]
            if len(rest) > _LINE_BYTES:
                data, rest = data + _settled(rest), b""
            self._partial = rest
        self._write(data)

    def close(self) -> None:
        """Write the remaining bytes and close the file."""
        last = _settled(self._partial)
        if last:
            self._write(last + b"\n")
        if self._file is not None:
            self._file.close()

    def _write(self, data: bytes) -> None:
        if self._file is None or not data:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self._console.log(
                f"cannot write {self._path} any more ({error.strerror}); the run continues without this log"
            )
            self._file.close()
            self._file = None


def next_logs(root: Path | None, run_dir: Path | None) -> Path | None:
    """Create the next `attempt-<n>` folder; logs of earlier attempts and launches stay."""
    if root is None:
        return None
    try:
        if run_dir is not None:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # with the mode that the ranks would use: owner only
        root.mkdir(parents=True, exist_ok=True)
        while True:
            taken = [int(m[1]) for m in (re.fullmatch(r"attempt-(\d+)", entry.name) for entry in root.iterdir()) if m]
            folder = root / f"attempt-{max(taken, default=-1) + 1}"
            with contextlib.suppress(FileExistsError):  # another node with the same name made it meanwhile
                folder.mkdir(mode=0o700)
                return folder
    except OSError as error:
        raise LaunchError(
            f"cannot write logs to {root}: {error.strerror}; choose another --log-dir or --run-dir"
        ) from error


def _settled(line: bytes) -> bytes:
    """Return how a line looks on a terminal after all its carriage returns, without colours."""
    return _last_state(_ESCAPES.sub(b"", line))


def _last_state(line: bytes) -> bytes:
    parts = [part for part in line.split(b"\r") if part]
    return parts[-1] if parts else b""


class Pump:
    """Forwards what one rank writes to one of its streams.

    Args:
        fd: where to read; a pipe or the master side of a pseudo-terminal. Closed by `close`.
        stream: where the output goes if `shown`.
        rank: the rank that writes. Of rank 0, a line is shown as it grows; of other ranks, only whole lines.
        shown: whether it reaches the console.
        raw: pass bytes on as they come (the rank that owns the terminal).
        log: log file that gets all output.
    """

    def __init__(
        self, fd: int, stream: SharedStream, rank: int, *, shown: bool, raw: bool = False, log: LogFile | None = None
    ) -> None:
        self.fd, self.stream, self.shown, self.raw = fd, stream, shown, raw
        self.num_lines = 0
        self._rank, self._log = rank, log
        self._partial = b""
        self._shown_s = self._read_s = time.monotonic()
        self._torn_until_s = self._shown_s  # until then, an unfinished line may be one that a full buffer has cut
        self._was_flooded = False
        os.set_blocking(fd, False)

    def pump(self) -> bool:
        """Forward the available data; return False at the end of the stream."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False  # a pseudo-terminal whose other side is closed gives EIO
        if data:
            self._move(data)
        return bool(data)

    def drain(self) -> None:
        """Forward all remaining data at the end; at most a full pipe, because a stray process may keep writing."""
        for _ in range(_PIPE_BYTES // _READ_BYTES):
            if not self.pump():
                return

    def show_unfinished(self) -> float | None:
        """Show an unfinished line of rank 0 whose rest did not arrive in time, unless more data can be read now.

        Returns:
            Seconds until the next such line is to be shown; None: there is none.
        """
        if not self._partial or not self.shown or self._rank:
            return None
        now = time.monotonic()
        wait_s = max(self._read_s + _UNFINISHED_S, self._torn_until_s) - now
        if wait_s > 0:
            return wait_s
        more = select.poll()
        more.register(self.fd, select.POLLIN)
        if more.poll(0):
            return 0.0
        if self._torn_until_s > self._read_s and now - self._torn_until_s > _LATE_S:
            self._torn_until_s = now + _TORN_S  # the rank, too, has to get a core first
            return _TORN_S
        self._give_partial()
        return None

    def _move(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
        self.num_lines += data.count(b"\n")
        if self.shown and self.raw:
            self.stream.raw(self._rank, data)
        elif self.shown and self._rank == 0:
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # a progress bar ends each state with a carriage return
            if end:
                self.stream.raw(0, self._partial + data[:end])
            now, has_begun = time.monotonic(), bool(self._partial)
            self._partial = data[end:] if end else self._partial + data
            # a short read soon after a large one is the rest of that write, not a prompt: it waits as long
            if b"\n" in data or (self._was_flooded and now - self._read_s < _TORN_S):
                self._torn_until_s = now + _TORN_S
            elif not has_begun:  # a line that begins by itself: a prompt, or the first of some dots
                self._torn_until_s = self._read_s
            self._read_s, self._was_flooded = now, len(data) >= _FLOOD_BYTES
        elif self.shown:
            *lines, rest = (self._partial + data).split(b"\n")
            for line in lines:
                self._show(line)
            self._partial = self._newest_state(rest)
        if len(self._partial) > _LINE_BYTES:
            self._give_partial()

    def _show(self, line: bytes) -> None:
        self.stream.line(self._rank, _last_state(line))
        self._shown_s = time.monotonic()

    def _give_partial(self) -> None:
        if self._rank:
            self._show(self._partial)
        else:
            self.stream.raw(0, self._partial)
        self._partial = b""

    def _newest_state(self, rest: bytes) -> bytes:
        """Drop the overwritten states of a line; show a progress bar's state every `_STATE_S` seconds."""
        older, gone_back, newest = rest.rpartition(b"\r")
        if not gone_back:
            return rest
        if time.monotonic() - self._shown_s > _STATE_S:
            self._show(older)
            return newest
        return newest or _last_state(older) + b"\r"

    def close(self) -> None:
        """Show the last unfinished line, and close the log file and the descriptor."""
        if self._partial:
            self._give_partial()
        if self._log is not None:
            self._log.close()
        os.close(self.fd)

    def note(self, text: str) -> None:
        """Append a text to the log only."""
        if self._log is not None:
            self._log.write(text.encode("utf-8", "backslashreplace"))
