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

from rankwise.launch.local.console import Console, Merger, Voice
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
        ours: descriptors to close once the rank has started.
        terminals: master sides of pseudo-terminals, resized with the supervisor's terminal.
    """

    stdin: int
    report: int
    report_fd: int
    out: int | None = None
    err: int | None = None
    pumps: list[Pump] = field(default_factory=list)
    ours: list[int] = field(default_factory=list)
    terminals: list[tuple[int, int]] = field(default_factory=list)

    def close_ours(self) -> None:
        """Close the rank's ends in this process, so that the streams end with the rank."""
        for fd in self.ours:
            os.close(fd)
        self.ours.clear()

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
    wires = Wires(stdin=null, report=report, report_fd=report_fd, ours=[null, report])
    if rank == 0 and _may_read_terminal():
        wires.stdin = 0
    for stream in ("out", "err"):
        shown = show.shows(rank, stream)
        ours = logs is None and (num_ranks == 1 or console.is_terminal(stream))
        if rank == 0 and shown and ours and stream not in mergers:
            continue
        log = logs / f"rank-{rank}.{stream}" if logs is not None else None
        prefix = b"" if rank == 0 or num_ranks == 1 else f"[{rank}] ".encode()
        merger = mergers.get(stream) if shown else None
        place = console if merger is None else Voice(merger, console, rank, prefix)
        _lay(wires, stream, console, place, shown=shown, first=rank == 0, prefix=prefix, log=log)
    return wires


def _lay(
    wires: Wires,
    stream: str,
    console: Console,
    place: Console | Voice,
    *,
    shown: bool,
    first: bool,
    prefix: bytes,
    log: Path | None,
) -> None:
    """Set up one stream with a pipe, or with a pseudo-terminal for the rank that owns the supervisor's terminal."""
    raw = first and shown and console.is_terminal(stream)
    if raw:
        master, slave = open_terminal(_FD[stream])
        wires.terminals.append((_FD[stream], master))
    else:
        master, slave = os.pipe()
    wires.ours.append(slave)
    if stream == "out":
        wires.out = slave
    else:
        wires.err = slave
    file = LogFile(log, from_terminal=raw, console=console) if log is not None else None
    wires.pumps.append(Pump(master, stream, place, shown=shown, raw=raw, prefix=prefix, log=file))


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
