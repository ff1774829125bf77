"""The death pact on the rank's side: when the supervisor goes, however it goes, the rank and all it started go too."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise.launch.local.sessions import GUARD, end_session, end_sessions

__all__ = ["die_with_parent", "keep_guard"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Make this process end as soon as its parent has.

    On Linux the kernel sends SIGKILL (asked for here, in the main thread, as the kernel ties the request to a thread);
    elsewhere it is left to the guard. Leaves at once if the parent is gone already.

    Args:
        parent: process id of the supervisor; this process must be its direct child.
    """
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def keep_guard(report_fd: int, folders: Sequence[Path]) -> None:
    """Start a process that ends the rank's session, and removes folders, once the supervisor is gone.

    A rank that the kernel kills cannot end what it has started (loader workers, subprocesses). The guard is not its
    child, which a program that waits for its children could meet; it is in its session, with whom the supervisor ends
    it. It does not have the command line of the script: who kills by that name does not kill the guard.

    Args:
        report_fd: pipe whose other end only the supervisor holds.
        folders: to be removed.
    """
    rank = os.getpid()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        _rename()  # before the guard is there, and before the rank goes on: there is no moment in which it has our name
        if os.fork() == 0:
            _stand_guard(rank, report_fd, folders)
    finally:
        os._exit(0)


def _stand_guard(rank: int, report_fd: int, folders: Sequence[Path]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)  # hold nobody's terminal or pipe open
    os.closerange(3, report_fd)
    os.closerange(report_fd + 1, 4096)
    gone = select.poll()
    gone.register(report_fd, 0)
    gone.poll()  # errors alone: nobody can read it any more
    if sys.platform == "linux":
        end_sessions({rank})
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    end_session(rank)


def _rename() -> None:
    """Write another command line over ours, where the kernel shows it."""
    if sys.platform == "linux":
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, GUARD, min(len(GUARD), end - start - 1))
