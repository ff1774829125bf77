"""Filter srun's own messages from stderr: hold back those that repeat the supervisors' messages, show the others."""

from __future__ import annotations

import os
import re
from typing import IO

from rankwise.launch.local.console import Console
from rankwise.launch.local.loop import Loop

__all__ = ["SrunErrors"]

_SPEAKERS = (b"srun: ", b"slurmstepd")
# how tasks ended, which the supervisors report in more detail, and how Slurm reacts
_REPEATS = re.compile(
    rb"srun: error: [^:]+: tasks? [\d,-]+: |srun: .*Terminating StepId=|srun: Job step aborted: |srun: got SIG|"
    rb"srun: forcing job termination|slurmstepd[^:]*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT "
)
_MOST_HELD = 200


class SrunErrors:
    """Copies the stderr of srun, which includes that of the ranks, to the console as it arrives.

    Args:
        stream: the read end of the pipe.
        loop: the event loop that calls `copy`.
        console: where the output goes.
    """

    def __init__(self, stream: IO[bytes], loop: Loop, console: Console) -> None:
        self._stream, self._loop, self._console = stream, loop, console
        self._start = b""  # the start of a line that may be srun's
        self._in_line = False
        self._held: list[bytes] = []
        os.set_blocking(stream.fileno(), False)
        loop.watch(stream.fileno(), self.copy)

    def copy(self) -> None:
        """Copy the available data."""
        try:
            data = os.read(self._stream.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._stream.fileno())
        self.feed(data)

    def feed(self, data: bytes) -> None:
        """Forward all lines except those of srun that repeat the supervisors' messages."""
        shown = []
        for piece in (self._start + data).splitlines(keepends=True) if data else [self._start]:
            begins, self._in_line = not self._in_line, not piece.endswith((b"\n", b"\r"))
            self._start = b""
            if begins and self._in_line and data and _may_be_sruns(piece):
                self._start, self._in_line = piece, False
            elif begins and _REPEATS.match(piece):
                self._held = [*self._held[1 - _MOST_HELD :], piece]
            else:
                shown.append(piece)
        self._console.raw("err", b"".join(shown))

    def close(self) -> None:
        """Copy the rest after srun has ended."""
        while True:
            try:
                data = os.read(self._stream.fileno(), 1 << 16)
            except BlockingIOError:
                break  # another process still holds the write end
            if not data:
                break
            self.feed(data)
        self.feed(b"")
        self._loop.forget(self._stream.fileno())
        self._stream.close()

    def show_held(self) -> None:
        """Show the lines held back: no supervisor has reported the failure."""
        for line in self._held:
            self._console.line("err", line.rstrip(b"\r\n"))
        self._held.clear()


def _may_be_sruns(start: bytes) -> bool:
    return any(start.startswith(speaker) or speaker.startswith(start) for speaker in _SPEAKERS)
