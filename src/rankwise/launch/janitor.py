"""A second, tiny process that cleans up if the supervisor is killed: no process group and no folder stays behind.

The parent-death signal ends the ranks themselves at once; what they started (loader workers, subprocesses) and the
folder in memory are what is left for the janitor. It lives on a pipe whose other end only the supervisor holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

from rankwise.launch.sessions import kill_sessions

__all__ = ["Janitor"]


class Janitor:
    """The supervisor's handle on its janitor. Start it before any thread and before any rank."""

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(read_end)
        os.close(read_end)

    def add_rank(self, pid: int) -> None:
        """Tell it about a rank, which leads its own session."""
        self._tell(f"+{pid}")

    def remove_rank(self, pid: int) -> None:
        """Tell it that a rank's session has been cleaned up: its number may soon be someone else's."""
        self._tell(f"-{pid}")

    def add_folder(self, folder: os.PathLike[str]) -> None:
        """Tell it about a folder to remove."""
        self._tell(f"={os.fspath(folder)}")

    def dismiss(self) -> None:
        """Send it home: everything is clean."""
        self._tell("bye")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # someone killed it: we clean up ourselves unless killed too
            os.write(self._pipe, line.encode() + b"\n")


def _serve(pipe: int) -> None:
    """Run the janitor; never returns."""
    try:
        os.setsid()  # a Ctrl-C at the terminal is not for the janitor
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)  # hold nobody's terminal or pipe open
        os.closerange(3, pipe)
        os.closerange(pipe + 1, 4096)
        _clean_up_after(pipe)
    finally:
        os._exit(0)


def _clean_up_after(pipe: int) -> None:
    pids: set[int] = set()
    folders: set[str] = set()
    with open(pipe, encoding="utf-8") as lines:
        for line in lines:
            word = line.rstrip("\n")
            if word == "bye":
                return
            if word.startswith("+"):
                pids.add(int(word[1:]))
            elif word.startswith("-"):
                pids.discard(int(word[1:]))
            else:
                folders.add(word[1:])
    kill_sessions(pids)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
