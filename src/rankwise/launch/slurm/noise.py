"""What srun itself says beside the output of the ranks: what repeats ours is held back, what informs is shown."""

from __future__ import annotations

import os
import re
from typing import IO

from rankwise.launch.local.console import Console
from rankwise.launch.local.loop import Loop

__all__ = ["SrunErrors"]

_SPEAKERS = (b"srun: ", b"slurmstepd")
# how tasks ended, which their supervisors tell better, and what Slurm does about it
_REPEATS = re.compile(
    rb"srun: error: [^:]+: tasks? [\d,-]+: |srun: .*Terminating StepId=|srun: Job step aborted: |srun: got SIG|"
    rb"srun: forcing job termination|slurmstepd[^:]*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT "
)
_MOST_HELD = 200


class SrunErrors:
    """Copies the stderr of a srun, with that of the ranks in it, to the console as it comes.

    Args:
        stream: the end of the pipe that we read.
        loop: calls us when there is something.
        console: where it goes.
    """

    def __init__(self, stream: IO[bytes], loop: Loop, console: Console) -> None:
        self._stream, self._loop, self._console = stream, loop, console
        self._start = b""  # of a line that may be srun's
        self._in_line = False
        self._held: list[bytes] = []
        os.set_blocking(stream.fileno(), False)
        loop.watch(stream.fileno(), self.copy)

    def copy(self) -> None:
        """Copy what is there."""
        try:
            data = os.read(self._stream.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._stream.fileno())
        self.feed(data)

    def feed(self, data: bytes) -> None:
        """Pass on all but the lines of srun that repeat what the supervisors tell."""
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
        """Copy the rest; srun has ended."""
        while True:
            try:
                data = os.read(self._stream.fileno(), 1 << 16)
            except BlockingIOError:
                break  # somebody else still holds the other end
            if not data:
                break
            self.feed(data)
        self.feed(b"")
        self._loop.forget(self._stream.fileno())
        self._stream.close()

    def show_held(self) -> None:
        """Show what was held back: nobody has told it."""
        for line in self._held:
            self._console.line("err", line.rstrip(b"\r\n"))
        self._held.clear()


def _may_be_sruns(start: bytes) -> bool:
    return any(start.startswith(speaker) or speaker.startswith(start) for speaker in _SPEAKERS)
