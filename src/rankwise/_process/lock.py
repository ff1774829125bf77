"""Locks that the kernel releases when their holder ends: `flock` on a file that names the holder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from rankwise._process.forks import fork_gate
from rankwise.errors import RunDirError

_POLL_S = 0.05
_FOLDER_WAIT_S = 15.0  # for a predecessor that is ending
_SIGN_BYTES = 128
_log = logging.getLogger("rankwise.tracking")
# Descriptors of the locks that this process holds, by real path of the lock file.
_held: dict[str, int] = {}
# Held where a lock file is open and not in the table, or the reverse.
_forks_wait = fork_gate()


def _forget_in_child() -> None:
    """Close the descriptors in a forked child (a loader worker): an orphan must not keep its dead parent's lock."""
    for fd in _held.values():
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class FileLock:
    """An exclusive lock on a file, held by one process until `release` or its end.

    Args:
        path: the lock file; created if missing, never removed (after a removal two processes could hold it).
        what: the protected object, for messages.
    """

    def __init__(self, path: Path, *, what: str) -> None:
        self.path = path
        self.what = what
        self._fd: int | None = None

    def acquire(self, *, wait_s: float) -> None:
        """Take the lock; wait up to `wait_s` seconds for its holder to release it or end.

        Raises:
            RunDirError: another process still holds it; the message names process and host.
        """
        deadline = time.monotonic() + wait_s
        said = False
        while (fd := self._try()) is None:
            owner = self._owner()
            if str(self.path.absolute()) in _held:
                raise RunDirError(f"{self.what} is already in use by this process; close it first")
            if time.monotonic() >= deadline:
                raise RunDirError(
                    f"{self.what} is in use by {owner} (waited {wait_s:g} s for {self.path.name}); stop that process, "
                    "or use another directory (for a run: --run-dir)"
                )
            if not said:
                _log.warning("%s is in use by %s; waiting up to %g s for it to end", self.what, owner, wait_s)
                said = True
            time.sleep(_POLL_S)
        self._fd = fd
        self._sign(fd)

    def release(self) -> None:
        """Release the lock. A second call, or a call in a forked child, does nothing."""
        with _forks_wait:
            if self._fd is not None and _held.get(str(self.path.absolute())) == self._fd:
                del _held[str(self.path.absolute())]
                os.close(self._fd)
        self._fd = None

    def _try(self) -> int | None:
        """Return a descriptor that holds the lock and is in the table, None if another process has it."""
        with _forks_wait:
            fd = self._opened()
            if fd is not None:
                _held[str(self.path.absolute())] = fd
            return fd

    def _opened(self) -> int | None:
        # a process that can open the file can lock it, so only users who may write in the folder may open it
        shared = 0o060 if self.path.parent.stat().st_mode & 0o020 else 0
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600 | shared)
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and found.st_mode & 0o777 & ~(0o600 | shared):
                os.fchmod(fd, found.st_mode & (0o600 | shared))  # a file of an earlier version
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # if the folder was moved aside, its lock file was moved too: a lock on a moved file is invalid
            if self.path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _sign(self, fd: int) -> None:
        """Write the holder's name for messages of other processes; in place, because the lock belongs to the inode."""
        name = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode().ljust(_SIGN_BYTES)
        # reading is ten times cheaper than writing, and the holder is usually the same process as before
        if os.pread(fd, len(name) + 1, 0) != name:
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, name, 0)
            except OSError as error:  # a full disk, which has no name here
                raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _owner(self) -> str:
        try:
            facts = json.loads(self.path.read_text())
            return f"process {facts['pid']} on host {facts['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


def lock_folder(folder: Path) -> Callable[[], None]:
    """Lock an existing folder against writes of other processes, as a run does; return what unlocks it.

    A second call in this process, and a call where the file system cannot lock, hold nothing.

    Raises:
        RunDirError: another process holds it, after 15 s.
    """
    lock = FileLock(folder / "running.lock", what=f"the folder {folder}")
    with contextlib.suppress(OSError):
        if str(lock.path.absolute()) not in _held:
            lock.acquire(wait_s=_FOLDER_WAIT_S)
    return lock.release
