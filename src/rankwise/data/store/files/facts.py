"""Facts about files before their data are read, and checks whether arrays have changed."""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.data.contract import IntArray
from rankwise.data.store.files.handles import identity_of
from rankwise.data.store.meta import ArrayMeta, read_meta
from rankwise.data.store.meta.documents import Stamp, stamp_document
from rankwise.data.store.remote import Part, RemoteFiles, TransferError
from rankwise.data.store.shard import IndexLayout, decode_index, read_index
from rankwise.errors import DataError

__all__ = ["PAUSES_S", "ArrayCheck", "FactsCache", "FileAddress", "FileFacts", "is_temporary", "retry_failed"]

PAUSES_S = (0.05, 0.25, 1.0)

# Errors of network file systems and busy devices that may be temporary.
_PASSING = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EAGAIN", "EINTR", "ESTALE", "ETIMEDOUT", "EBUSY", "ENOBUFS", "ENFILE", "EMFILE", "ECONNRESET")
    if hasattr(errno, name)
)


def is_temporary(error: object) -> bool:
    """Whether an error, or an errno, may be gone at the next attempt."""
    number = error.errno if isinstance(error, OSError) else error
    return isinstance(number, int) and number in _PASSING


def retry_failed(failed: Callable[[], list[int]], again: Callable[[int], None]) -> int:
    """Repeat reads that failed but may succeed, all of them after each pause; return how many were repeated.

    Args:
        failed: returns the reads that failed for such a reason.
        again: repeats one of them.
    """
    num = 0
    for pause in PAUSES_S:
        waiting = failed()
        if not waiting:
            break
        time.sleep(pause)  # no lock is held, and no other thread needs waking: pauses are short
        for at in waiting:
            again(at)
        num += len(waiting)
    return num


_MOST_STAMPS = 2**16
LOOK_AGAIN_S = 0.5
_V3 = 3


class ArrayCheck:
    """Checks the metadata of arrays again; thread-safe.

    Behind a URL it checks once, when the first of an array's objects is missing: missing objects are the fill value
    only if the array exists. On local disks it checks at each read whether the document was written since.
    """

    def __init__(self, remote: RemoteFiles) -> None:
        self._remote = remote
        self._known: dict[str, DataError | None] = {}
        self._stamps: dict[str, Stamp | None] = {}
        self._looked_s: dict[str, float] = {}
        # Guards the results and stamps; disks and stores are read without it, however long that takes. Two threads may
        # check the same array: they get the same answer.
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop all results."""
        with self._lock:
            self._known.clear()
            self._stamps.clear()
            self._looked_s.clear()

    def is_due(self, path: str, now_s: float) -> bool:
        """Return whether a file of one chunk is due for a check, and record the check.

        Such a file is complete, old or new, whenever it was read, and loaders prefetch by more than this interval.
        Checking every file of every batch would cost a tenth of the time if chunks are small and cached.
        """
        # Without the lock, because it is called for every file of every batch. Each line is atomic: at worst two
        # threads check the same file, or all files are checked once too often.
        if now_s - self._looked_s.get(path, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return False
        if len(self._looked_s) >= _MOST_STAMPS:
            self._looked_s.clear()
        self._looked_s[path] = now_s
        return True

    def suspect(self, path: str) -> None:
        """Check a changed file at every read from now on: the data read before must not pass as current."""
        self._looked_s.pop(path, None)

    def changed(self, array: ArrayMeta) -> DataError | None:
        """Return the error of a local array that was resized, replaced or removed since its first read, else None."""
        name = "zarr.json" if array.zarr_format == _V3 else ".zarray"
        # Taken before the document is read: a write in between gives another stamp at the next check.
        stamp = stamp_document(array.place, name)
        with self._lock:
            # the first thread that reads an array sets the stamp for all later checks
            if self._stamps.setdefault(array.place, stamp) == stamp:
                if len(self._stamps) > _MOST_STAMPS:
                    del self._stamps[next(iter(self._stamps))]
                return None
        try:
            now = read_meta(array.place)
        except DataError as error:
            return DataError(f"belongs to an array that was removed or can no longer be opened: {error}")
        if now.fingerprint != array.fingerprint:
            return DataError(
                f"belongs to an array that was rewritten or resized after it was opened (shape {array.shape} then, "
                f"{now.shape} now): reopen it, and do not write to it while it is read"
            )
        with self._lock:  # attributes do not matter
            self._stamps[array.place] = stamp
        return None

    def trouble(self, array: ArrayMeta) -> DataError | None:
        """Return the error of an array as a whole, None if it exists. Errors that may be temporary are not kept."""
        with self._lock:
            if array.place in self._known:
                return self._known[array.place]
        url = f"{array.place}/{'zarr.json' if array.zarr_format == _V3 else '.zarray'}"
        try:
            found = self._remote.size(url)
        except DataError as error:
            return error
        gone = f"the array {array.place} was moved or deleted after it was opened: restore and reopen it"
        answer = None if found is not None else TransferError(gone, url=url)
        with self._lock:
            self._known[array.place] = answer
        return answer


_CAPACITY_BYTES = 64 * 2**20
_ABSENT = -1
_UNASKED = -2
_OVERHEAD_BYTES = 512  # of an entry without an index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileFacts:
    """One file of an array.

    Attributes:
        path: local path or URL.
        size: bytes; -1 if the file does not exist (its chunks were never written), -2 if not yet known.
        identity: device, inode, size and time of change (ns) of a local file; shows whether it was replaced later.
        etag: the version of a remote object, None if unknown.
        index: int64[chunks of a shard, 2], offset and length of each, see `read_index`; None if the whole file is
            one chunk.
    """

    path: str
    size: int
    identity: tuple[object, ...]
    index: IntArray | None
    etag: str | None = None

    @property
    def exists(self) -> bool:
        """Whether the file exists, as far as known."""
        return self.size != _ABSENT

    @property
    def is_remote(self) -> bool:
        """Whether it lies behind a URL."""
        return "://" in self.path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileAddress:
    """A file of an array, given by coordinates.

    Attributes:
        serial: identifies the array.
        number: the file's index in the array's grid of files.
        array: the array.
        coords: coordinates of the file in that grid.
    """

    serial: int
    number: int
    array: ArrayMeta
    coords: tuple[int, ...]

    @property
    def path(self) -> str:
        """Local path or URL."""
        return f"{self.array.place}/{self.array.keys.key(self.coords)}"


class FactsCache:
    """Reads the facts of each file once and remembers the most recent ones; thread-safe.

    Missing files are remembered too; if one is created later, reading it raises an error (`changed_chunks`).

    Args:
        remote: the reader of object stores.
        capacity_bytes: approximate limit for the bytes of remembered indexes.
        most_files: limit for remembered files; None = as many as the bytes allow.

    Attributes:
        array_check: checks whether arrays behind URLs still exist.
    """

    def __init__(
        self, remote: RemoteFiles, capacity_bytes: int = _CAPACITY_BYTES, *, most_files: int | None = None
    ) -> None:
        self._remote = remote
        self._capacity = capacity_bytes
        self._most_files = most_files
        self._held: OrderedDict[tuple[int, int], FileFacts] = OrderedDict()
        self._held_bytes = 0
        # Guards the table, its bytes and the counts. Facts never change: they may be used without it.
        self._lock = threading.Lock()
        self.array_check = ArrayCheck(remote)
        self.num_looked_at = self.num_recalled = 0
        self.num_retries = 0

    def forget(self) -> None:
        """Forget all facts."""
        # A read in progress may add an old answer afterwards, but under an old serial, which is not used again.
        with self._lock:
            self._held.clear()
            self._held_bytes = 0
        self.array_check.forget()

    def cached(self, keys: Sequence[tuple[int, int]]) -> list[FileFacts | None]:
        """Return the known facts of files, None for the others; a key is serial and number of a `FileAddress`."""
        with self._lock:
            found = [self._touch(key) for key in keys]
            self.num_recalled += sum(facts is not None for facts in found)
            return found

    def look(self, files: Sequence[FileAddress]) -> list[FileFacts | DataError | OSError]:
        """Return the facts of files, in their order; for a file that cannot be read, its error.

        A DataError means that it is not a file, is shorter than its index, or has a damaged index. Storage errors that
        may be temporary are returned only if they persist.
        """
        with self._lock:
            found: list[FileFacts | DataError | OSError | None] = [
                self._touch((file.serial, file.number)) for file in files
            ]
        # From here on without the lock: this may take a second, and other threads plan other files meanwhile.
        absent = [at for at, facts in enumerate(found) if facts is None]
        far = [at for at in absent if files[at].array.is_remote]
        for at, answer in zip(far, _look_at_remote([files[k] for k in far], self._remote), strict=True):
            found[at] = answer
        for at in absent:
            found[at] = found[at] or _caught(files[at])

        def again(at: int) -> None:
            found[at] = _caught(files[at])

        retries = retry_failed(lambda: [at for at, answer in enumerate(found) if is_temporary(answer)], again)
        with self._lock:
            self.num_retries += retries
        for at in absent:
            seen = found[at]
            if isinstance(seen, FileFacts):
                with self._lock:
                    self._keep((files[at].serial, files[at].number), seen)
        return [facts for facts in found if facts is not None]

    def _touch(self, key: tuple[int, int]) -> FileFacts | None:
        facts = self._held.get(key)
        if facts is not None:
            self._held.move_to_end(key)
        return facts

    def _keep(self, key: tuple[int, int], facts: FileFacts) -> None:
        self.num_looked_at += 1
        old = self._held.pop(key, None)  # another thread may have read it at the same time
        self._held_bytes -= 0 if old is None else _weight(old)
        self._held[key] = facts
        self._held_bytes += _weight(facts)
        most = len(self._held) if self._most_files is None else self._most_files
        while len(self._held) > 1 and (self._held_bytes > self._capacity or len(self._held) > most):
            _, old = self._held.popitem(last=False)
            self._held_bytes -= _weight(old)


def _weight(facts: FileFacts) -> int:
    return _OVERHEAD_BYTES + (0 if facts.index is None else facts.index.nbytes)


def _caught(file: FileAddress) -> FileFacts | DataError | OSError:
    try:
        return _look_at(file.array, file.path)
    except (DataError, OSError) as error:
        return error


def _look_at(array: ArrayMeta, path: str) -> FileFacts:
    try:
        status = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return FileFacts(path=path, size=_ABSENT, identity=(), index=None)
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} should be a chunk of an array, but is not a regular file")
    index = None
    if array.index is not None:
        index = read_index(Path(path), array.index).reshape(math.prod(array.index.chunks_per_shard), 2)
    return FileFacts(path=path, size=status.st_size, identity=identity_of(status), index=index)


def _look_at_remote(files: Sequence[FileAddress], remote: RemoteFiles) -> list[FileFacts | DataError]:
    """Return the facts of objects; the indexes of shards are requested concurrently, as far as the options allow.

    There is no request for an object that is one chunk before it is read.
    """
    answers: list[FileFacts | DataError] = [
        FileFacts(path=file.path, size=_UNASKED, identity=(), index=None) for file in files
    ]
    for at_end in (True, False):
        shards = [k for k, file in enumerate(files) if file.array.index and file.array.index.at_end == at_end]
        if not shards:
            continue
        wanted = [(files[k].path, _layout(files[k]).num_bytes) for k in shards]
        parts = remote.read_tails(wanted) if at_end else remote.read_heads(wanted)
        for k, part in zip(shards, parts, strict=True):
            answers[k] = part if isinstance(part, DataError) else _shard_facts(files[k], part)
    return answers


def _shard_facts(file: FileAddress, part: Part | None) -> FileFacts | DataError:
    if part is None:
        return FileFacts(path=file.path, size=_ABSENT, identity=(), index=None)
    layout = _layout(file)
    try:
        index = decode_index(bytes(part.data), layout, size=part.size, place=file.path)
    except DataError as error:
        return error
    return FileFacts(
        path=file.path,
        size=part.size,
        identity=(),
        index=index.reshape(math.prod(layout.chunks_per_shard), 2),
        etag=part.etag,
    )


def _layout(file: FileAddress) -> IndexLayout:
    assert file.array.index is not None
    return file.array.index
