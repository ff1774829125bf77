"""Open files; the least recently used ones are closed if there are too many."""

from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from collections import OrderedDict
from pathlib import Path

from rankwise.errors import DataError

_RESERVED = 64  # for sockets, logs, libraries and other files of the process
MOST_FILES = 4096
_NUM_DOORS = 16  # this many files can be opened concurrently


def file_limit() -> int:
    """Return how many files a reader may keep open: half of the process limit minus 64, from 16 to 4,096."""
    soft = _soft_limit()
    return _RESERVED if soft is None else min(MOST_FILES, max(16, (soft - _RESERVED) // 2))


def _soft_limit() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """Return an identity that differs if a file was replaced: device, inode, size, time of change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def local_identity(path: str) -> tuple[int, ...]:
    """Return the identity of the file at a path; () if there is none."""
    try:
        return identity_of(os.stat(path))  # noqa: PTH116  (hot: once for each file of a batch)
    except (OSError, ValueError):
        return ()


def local_size(path: str) -> int:
    """Return the bytes of a file, -1 if there is none.

    Raises:
        DataError: its size cannot be read.
    """
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError as error:
        raise DataError(f"cannot read the status of the file {path}: {error}") from error


class OpenFile:
    """A file descriptor that is closed with the last reference to this object."""

    __slots__ = ("fd", "identity")
    _close = staticmethod(os.close)  # interpreter exit may empty `os` before the last file is closed

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.identity = identity_of(os.fstat(self.fd))

    def __del__(self) -> None:
        # Reading threads hold the object, so the descriptor is never closed or reused under them. This runs in any
        # thread, even while the cache's lock is held, and takes no lock. In a forked child it closes the child's copy,
        # which does not affect the parent.
        if hasattr(self, "fd"):
            self._close(self.fd)


class HandleCache:
    """Opens files once and keeps the last `capacity` of them open; thread-safe.

    A file that leaves the cache stays open until reads in progress are done. If the process may not open another file,
    every cache of it closes half of its files and keeps no more than the rest from then on: the readers of a process
    share its limit, and none of them knows how many others follow.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = file_limit() if capacity is None else capacity
        self._open: OrderedDict[str, OpenFile] = OrderedDict()
        self._lock = threading.Lock()  # guards the table; never held while a file is opened or read
        # A thread that opens a file holds the door of its path; a second thread waits, so no file is opened twice.
        self._doors = tuple(threading.Lock() for _ in range(_NUM_DOORS))
        self.num_opened = 0
        with _CACHES_LOCK:
            _CACHES.add(self)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> OpenFile:
        """Return a handle.

        Raises:
            OSError: the file cannot be opened.
        """
        handle = self._known(path)
        if handle is None:
            # Paths that share a door only wait longer. A door is taken before the lock, and no thread takes two doors.
            with self._doors[hash(path) % _NUM_DOORS]:
                handle = self._known(path)  # the previous holder of the door may have opened it
                if handle is None:
                    handle = _opened(path)  # without the lock: on a network file system this can take long
                    with self._lock:
                        self.num_opened += 1
                        self._open[path] = handle
                        while len(self._open) > self.capacity:
                            self._open.popitem(last=False)
        return handle

    def _known(self, path: str) -> OpenFile | None:
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
            return handle

    def discard(self, path: str) -> None:
        """Open the file again next time."""
        with self._lock:
            self._open.pop(path, None)

    def halve(self) -> None:
        """Close half of the files, the least recently used ones, and keep no more than the others open from now on."""
        with self._lock:
            self.capacity = min(self.capacity, max(_FEWEST, len(self._open) // 2))
            while len(self._open) > self.capacity:
                self._open.popitem(last=False)

    def close(self) -> None:
        """Close files that are not being read."""
        with self._lock:
            self._open.clear()


_FEWEST = 4  # files that a cache keeps open however few the process may open
_CACHES: weakref.WeakSet[HandleCache] = weakref.WeakSet()  # of this process
_CACHES_LOCK = threading.Lock()  # guards the set; no other lock is taken under it
if hasattr(os, "register_at_fork"):  # another thread may hold it during a fork
    os.register_at_fork(after_in_child=_CACHES_LOCK._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001


def _opened(path: str) -> OpenFile:
    try:
        return OpenFile(path)
    except OSError as error:
        if not free_handles(error):
            raise
    try:
        return OpenFile(path)
    except OSError as error:
        free_handles(error)
        raise


def free_handles(error: object) -> bool:
    """If an error says that no file can be opened, close half of all files that are kept; return whether it does.

    The error gets the limit and what to do.
    """
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return False
    with _CACHES_LOCK:
        caches = list(_CACHES)
    for cache in caches:
        cache.halve()
    if error.errno == errno.EMFILE:
        error.strerror = (
            f"{os.strerror(errno.EMFILE)}, this process may open {_soft_limit()}: raise that (ulimit -n 4096)"
        )
    return True


_LOG = logging.getLogger(__name__)
_FILE_MAX = Path("/proc/sys/fs/file-max")


def warn_few_handles(*, wanted: int, capacity: int, local_ranks: int) -> None:
    """Warn if files will be reopened all the time, or if all ranks together may open too many.

    Reopening is not an error: the most recently used files stay open, the others are opened again.

    Args:
        wanted: files that one rank reads from at a time, over all steps in flight.
        capacity: files that its reader keeps open.
        local_ranks: number of ranks on this machine.
    """
    if wanted > capacity:
        _LOG.warning(
            "the steps in flight of a rank use up to %d files, its reader keeps %d open: files are reopened again and "
            "again. %s",
            wanted,
            capacity,
            f"Raise the limit (ulimit -n {2 * wanted + _RESERVED} or more), or store larger shards"
            if wanted <= MOST_FILES
            else "Store larger shards or use a smaller batch",
        )
    try:
        system_limit = int(_FILE_MAX.read_text())  # of all processes of this machine together
    except (OSError, ValueError):  # unknown
        return
    together = min(wanted, capacity) * local_ranks
    if together > system_limit:
        _LOG.warning(
            "the %d ranks of this machine may keep %d files open together, the system allows %d: use a smaller depth "
            "or batch, or raise fs.file-max",
            local_ranks,
            together,
            system_limit,
        )
