"""The descriptors of a rank: pipes, or a pseudo-terminal for rank 0, and the pumps for its output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.launch.local.console import Console, SharedStream
from rankwise.launch.local.pump import LogFile, Pump
from rankwise.launch.show import Show

_FD = {"out": 1, "err": 2}


@dataclass(kw_only=True, slots=True)
class RankPipes:
    """The descriptors of one rank.

    Attributes:
        stdin: descriptor to read.
        report: descriptor to which it writes its report.
        report_fd: descriptor from which the supervisor reads the report.
        out: descriptor of its stdout; None: it inherits the supervisor's.
        err: descriptor of its stderr; None: it inherits the supervisor's.
        pumps: the pumps for streams that are not inherited.
    """

    stdin: int
    report: int
    report_fd: int
    out: int | None = None
    err: int | None = None
    pumps: list[Pump] = field(default_factory=list)

    def close_theirs(self) -> None:
        """Close the rank's ends in this process, so that the streams end with the rank."""
        for fd in (self.stdin, self.report, self.out, self.err):
            if fd:
                os.close(fd)

    def close(self) -> None:
        """Close the supervisor's ends."""
        os.close(self.report_fd)
        for pump in self.pumps:
            pump.close()

    def resize(self) -> None:
        """Give the pseudo-terminals the new size of the supervisor's terminal."""
        for pump in self.pumps:
            if pump.raw:
                _copy_size(_FD[pump.stream.name], pump.fd)


def open_pipes(
    rank: int, num_ranks: int, show: Show, console: Console, *, logs: Path | None, streams: Mapping[str, SharedStream]
) -> RankPipes:
    """Open the descriptors of a rank.

    Rank 0 writes as if it ran alone: it inherits the supervisor's terminal. If its output also goes to a log file, or
    is merged with that of others, it gets a pseudo-terminal of the same size. If the console is no terminal, it gets
    whole lines of all ranks; lines of the other ranks start with `[rank]`.
    """
    report_fd, report = os.pipe()
    os.set_blocking(report_fd, False)
    stdin = 0 if rank == 0 and _may_read_terminal() else os.open(os.devnull, os.O_RDWR)
    pipes = RankPipes(stdin=stdin, report=report, report_fd=report_fd)
    for name, stream in streams.items():
        shown, is_terminal = show.shows(rank, name), console.is_terminal(name)
        first = rank == 0 and shown
        if first and logs is None and not stream.merges and (num_ranks == 1 or is_terminal):
            continue  # it inherits the supervisor's
        raw = first and is_terminal
        ours, theirs = _open_terminal(_FD[name]) if raw else os.pipe()
        setattr(pipes, name, theirs)
        log = None if logs is None else LogFile(logs / f"rank-{rank}.{name}", from_terminal=raw, console=console)
        pipes.pumps.append(Pump(ours, stream, rank, shown=shown, raw=raw, log=log))
    return pipes


def _may_read_terminal() -> bool:
    """Whether stdin is open, and is not a terminal whose foreground job is another one."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _open_terminal(like: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the size of the terminal `like`; return its (master, slave) descriptors.

    It passes output on unchanged: only the real terminal converts line feeds.
    """
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    _copy_size(like, master)
    return master, slave


def _copy_size(source: int, target: int) -> None:
    """Give the terminal `target` the size of `source`; do nothing if `source` is no terminal."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
