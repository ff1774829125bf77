"""The supervisor's own stdout and stderr, on which whole lines of many ranks meet."""

from __future__ import annotations

import os
import select

__all__ = ["Console"]

_FDS = {"out": 1, "err": 2}


class Console:
    """Writes lines and raw bytes to this process's stdout and stderr; never lets a lost terminal stop the run."""

    def __init__(self) -> None:
        self._lost: set[str] = set()
        self._in_line = {"out": False, "err": False}

    def is_terminal(self, stream: str) -> bool:
        """Whether "out" or "err" is a terminal."""
        try:
            return os.isatty(_FDS[stream])
        except OSError:
            return False

    def raw(self, stream: str, data: bytes) -> None:
        """Write bytes as they are; they may end in the middle of a line."""
        if data:
            self._write(stream, data)
            self._in_line[stream] = data[-1:] not in b"\r\n"

    def line(self, stream: str, line: bytes) -> None:
        """Write one line, on a line of its own."""
        text = line if line.endswith(b"\n") else line + b"\n"
        self._write(stream, b"\n" + text if self._in_line[stream] else text)
        self._in_line[stream] = False

    def say(self, text: str) -> None:
        """Write a message of the supervisor itself to stderr; every line of it names the speaker."""
        for line in text.splitlines():
            self.line("err", f"rankwise: {line}".encode())

    def block(self, text: str) -> None:
        """Write a text to stderr as it is."""
        self.line("err", text.encode("utf-8", "backslashreplace"))

    def _write(self, stream: str, data: bytes) -> None:
        """Write everything; once the reader has gone, write nothing more (the run and its logs go on)."""
        fd = _FDS[stream]
        while data and stream not in self._lost:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                select.select([], [fd], [], 1.0)  # another program made our terminal non-blocking
            except OSError:
                self._lost.add(stream)
