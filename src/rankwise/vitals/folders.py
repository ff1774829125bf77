"""Folders of a launch for vitals and calls: in memory if possible; a later launch removes those of killed owners."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from rankwise.errors import LaunchError

_MEMORY = Path("/dev/shm")  # noqa: S108  (tmpfs of Linux; each folder in it is our own, mode 700)
_LEAST_BYTES = 1 << 22  # free in it; a rank that maps a page of a full one dies of SIGBUS
_PREFIX = "rankwise-"
_OWNER = "owner"  # a file locked by the owner; the kernel releases the lock when the process ends
_FAILED = "failed"
_locks: dict[Path, int] = {}


def make_folder(*, in_memory: bool = True, sweep: bool = True) -> Path:
    """Create an empty folder that only this user can access; the caller removes it with `remove_folder`.

    Args:
        in_memory: use a memory file system if possible, else the folder for temporary files.
        sweep: call `sweep_folders` first.
    """
    if sweep:
        sweep_folders(in_memory=in_memory)
    root = _root(in_memory=in_memory)
    # hide the folder from sweeping processes until its lock is held
    hidden = _new_folder(root)
    lock = os.open(hidden / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: it will never be swept
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder = hidden.rename(root / hidden.name.removeprefix("."))
    _locks[folder] = lock
    return folder


def sweep_folders(*, in_memory: bool = True) -> None:
    """Remove folders of processes that were killed before they could remove them."""
    for folder in _root(in_memory=in_memory).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is being removed, or belongs to another user
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and _is_left(folder / _OWNER):
                _remove_tree(folder)


def _root(*, in_memory: bool) -> Path:
    if in_memory and _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK):
        found = os.statvfs(_MEMORY)
        if found.f_bavail * found.f_frsize >= _LEAST_BYTES or not found.f_blocks:  # 0: without a limit
            return _MEMORY
    import tempfile  # it and shutil import much, and a launch in memory needs them only at its end

    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise LaunchError(f"{error.strerror}: set TMPDIR to a folder that this user can write to") from error


def _new_folder(root: Path) -> Path:
    while True:
        folder = root / f".{_PREFIX}{os.urandom(6).hex()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def _remove_tree(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder and its content."""
    _remove_tree(folder)
    lock = _locks.pop(folder, None)
    if lock is not None:
        os.close(lock)


def mark_failed(folder: Path) -> None:
    """Mark the folder, so that the ranks of a launch can see that one of them has failed."""
    (folder / _FAILED).touch()


def has_failed() -> bool:
    """Whether a rank of this process's launch has failed."""
    folder = os.environ.get("RANKWISE_VITALS")
    return bool(folder) and Path(str(folder), _FAILED).exists()


def _is_left(owner: Path) -> bool:
    lock = os.open(owner, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
