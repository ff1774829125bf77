"""The descriptors of a rank: pipes, or a pseudo-terminal for rank 0, and the pumps for its output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.launch.local.console import Console, Merger
from rankwise.launch.local.pump import LogFile, Pump
from rankwise.launch.show import Show

__all__ = ["Wires", "copy_size", "make_mergers", "open_terminal", "wire"]

_FD = {"out": 1, "err": 2}


@dataclass(kw_only=True, slots=True)
class Wires:
    """The descriptors of one rank.

    Attributes:
        stdin: descriptor to read.
        report: descriptor to which it writes its report.
        report_fd: descriptor from which the supervisor reads the report.
        out: descriptor of its stdout; None: it inherits the supervisor's.
        err: descriptor of its stderr; None: it inherits the supervisor's.
        pumps: the pumps for streams that are not inherited.
        theirs: the rank's ends, to close once it has started.
        terminals: master sides of pseudo-terminals, resized with the supervisor's terminal.
    """

    stdin: int
    report: int
    report_fd: int
    out: int | None = None
    err: int | None = None
    pumps: list[Pump] = field(default_factory=list)
    theirs: list[int] = field(default_factory=list)
    terminals: list[tuple[int, int]] = field(default_factory=list)

    def close_theirs(self) -> None:
        """Close the rank's ends in this process, so that the streams end with the rank."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs.clear()

    def close(self) -> None:
        """Close the supervisor's ends."""
        os.close(self.report_fd)
        for pump in self.pumps:
            pump.close()

    def resize(self) -> None:
        """Give the pseudo-terminals the new size of the supervisor's terminal."""
        for real, master in self.terminals:
            copy_size(real, master)


def make_mergers(ranks: Sequence[int], show: Show, console: Console) -> dict[str, Merger]:
    """Return a merger for each stream ("out", "err") that is shown for more than one rank."""
    speakers = {stream: [rank for rank in ranks if show.shows(rank, stream)] for stream in ("out", "err")}
    return {
        stream: Merger(stream, console, several)
        for stream, several in speakers.items()
        if show.merge and len(several) > 1
    }


def wire(
    rank: int, num_ranks: int, show: Show, console: Console, *, logs: Path | None, mergers: Mapping[str, Merger]
) -> Wires:
    """Open the descriptors of a rank.

    Rank 0 writes as if it ran alone: it inherits the supervisor's terminal. If its output also goes to a log file or a
    merger, it gets a pseudo-terminal of the same size. If the console is no terminal, it gets whole lines of all ranks;
    lines of the other ranks start with `[rank]`.

    Args:
        rank: global rank.
        num_ranks: ranks of this launch.
        show: what reaches the console.
        console: where that output goes.
        logs: existing folder for log files, None for no logs.
        mergers: mergers of the streams that are shown for several ranks.
    """
    null = os.open(os.devnull, os.O_RDWR)
    report_fd, report = os.pipe()
    os.set_blocking(report_fd, False)
    wires = Wires(stdin=null, report=report, report_fd=report_fd, theirs=[null, report])
    if rank == 0 and _may_read_terminal():
        wires.stdin = 0
    prefix = b"" if rank == 0 or num_ranks == 1 else f"[{rank}] ".encode()
    for stream, number in _FD.items():
        shown, is_terminal = show.shows(rank, stream), console.is_terminal(stream)
        merger = mergers.get(stream) if shown else None
        first = rank == 0 and shown
        if first and logs is None and merger is None and (num_ranks == 1 or is_terminal):
            continue  # it inherits the supervisor's
        raw = first and is_terminal
        ours, theirs = open_terminal(number) if raw else os.pipe()
        if raw:
            wires.terminals.append((number, ours))
        wires.theirs.append(theirs)
        setattr(wires, stream, theirs)
        log = None
        if logs is not None:
            log = LogFile(logs / f"rank-{rank}.{stream}", from_terminal=raw, console=console)
        pump = Pump(ours, stream, console, shown=shown, raw=raw, prefix=prefix, log=log, merger=merger, rank=rank)
        wires.pumps.append(pump)
    return wires


def _may_read_terminal() -> bool:
    """Whether stdin is open, and is not a terminal whose foreground job is another one."""
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def open_terminal(like: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the size of the terminal `like`; return its (master, slave) descriptors.

    It passes output on unchanged: only the real terminal converts line feeds.
    """
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    copy_size(like, master)
    return master, slave


def copy_size(source: int, target: int) -> None:
    """Give the terminal `target` the size of `source`; do nothing if `source` is no terminal."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
