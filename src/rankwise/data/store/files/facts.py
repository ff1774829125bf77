"""Facts about files before their data are read, and checks whether arrays have changed."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.data.contract import IntArray
from rankwise.data.store.files.handles import free_handles, identity_of, local_identity
from rankwise.data.store.meta.tree import read_meta
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.remote import Part, RemoteFiles, TransferError
from rankwise.data.store.shard import IndexLayout, decode_index, read_index
from rankwise.errors import DataError

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
    """Checks whether files and the metadata of arrays have changed; thread-safe.

    Behind a URL it checks once, when the first of an array's objects is missing: missing objects are the fill value
    only if the array exists. On local disks it checks at each read whether the document was written since.
    """

    def __init__(self, remote: RemoteFiles) -> None:
        self._remote = remote
        self._known: dict[str, DataError | None] = {}
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._looked_s: dict[str, float] = {}
        # Guards the results and stamps; disks and stores are read without it, however long that takes. Two threads may
        # check the same array: they get the same answer.
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Drop all results."""
        with self._lock:
            self._known.clear()
            self._stamps.clear()
            self._looked_s.clear()

    def replaced(self, facts: FileFacts, now_s: float) -> bool:
        """Return whether a local file is another one than its facts say, or was removed, or created.

        Shards are checked each time, since their index is older than their bytes; files of one chunk every half second:
        they are complete, old or new, whenever they were read, and loaders prefetch by more than that. Checking every
        file of every batch would cost a tenth of the time if chunks are small and cached.
        """
        path = facts.path
        if facts.is_remote:
            return False
        if facts.index is None:
            # Without the lock, because this is called for every file of every batch. Each line is atomic: at worst two
            # threads check the same file, or all files are checked once too often.
            if now_s - self._looked_s.get(path, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
                return False
            if len(self._looked_s) >= _MOST_STAMPS:
                self._looked_s.clear()
            self._looked_s[path] = now_s
        if facts.identity == local_identity(path):
            return False
        self._looked_s.pop(path, None)  # from now on at every read: the data read before must not pass as current
        return True

    def changed(self, array: ArrayMeta) -> DataError | None:
        """Return the error of a local array that was resized, replaced or removed since its first read, else None."""
        # Taken before the document is read: a write in between gives another stamp at the next check.
        stamp = local_identity(_document(array))
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
            same = "with other chunks, codecs or dtype"
            how = same if now.shape == array.shape else f"shape {array.shape} then, {now.shape} now"
            return DataError(
                f"belongs to an array that was rewritten or resized after it was opened ({how}): reopen it, and do not "
                "write to it while it is read"
            )
        with self._lock:  # attributes do not matter
            self._stamps[array.place] = stamp
        return None

    def trouble(self, array: ArrayMeta) -> DataError | None:
        """Return the error of an array as a whole, None if it exists. Errors that may be temporary are not kept."""
        with self._lock:
            if array.place in self._known:
                return self._known[array.place]
        url = _document(array)
        try:
            found = self._remote.size(url)
        except DataError as error:
            return error
        gone = f"the array {array.place} was moved or deleted after it was opened: restore and reopen it"
        answer = None if found is not None else TransferError(gone, url=url)
        with self._lock:
            self._known[array.place] = answer
        return answer


def _document(array: ArrayMeta) -> str:
    return f"{array.place}/{'zarr.json' if array.zarr_format == _V3 else '.zarray'}"


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
        error: why nothing else is known: it is no file, is shorter than its index, has a damaged index, cannot be
            read, or is missing with its whole array.
    """

    path: str
    size: int = 0
    identity: tuple[object, ...] = ()
    etag: str | None = None
    index: IntArray | None = None
    error: DataError | OSError | None = None

    @property
    def exists(self) -> bool:
        """Whether the file exists, as far as known."""
        return self.size != _ABSENT

    @property
    def is_remote(self) -> bool:
        """Whether it lies behind a URL."""
        return "://" in self.path

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        return _OVERHEAD_BYTES + (0 if self.index is None else self.index.nbytes)


class FactsCache:
    """Reads the facts of each file once and remembers the most recent ones; thread-safe.

    Missing files are remembered too; if one is created later, reading it raises an error (`changed_chunks`).

    Args:
        remote: the reader of object stores.
        serial: returns a number that identifies an array.
        capacity_bytes: approximate limit for the bytes of remembered indexes.
        most_files: limit for remembered files; None = as many as the bytes allow.

    Attributes:
        array_check: checks whether arrays behind URLs still exist.
    """

    def __init__(
        self,
        remote: RemoteFiles,
        serial: Callable[[ArrayMeta], int],
        capacity_bytes: int = _CAPACITY_BYTES,
        *,
        most_files: int | None = None,
    ) -> None:
        self._remote = remote
        self._serial = serial
        self._capacity = capacity_bytes
        self._most_files = most_files
        self._held: OrderedDict[tuple[int, int], FileFacts] = OrderedDict()  # by serial and number
        self._held_bytes = 0
        # Guards the table, its bytes and the counts. Facts never change: they may be used without it.
        self._lock = threading.Lock()
        self.array_check = ArrayCheck(remote)
        self.num_looked_at = self.num_recalled = 0
        self.num_retries = 0

    def clear(self) -> None:
        """Forget all facts."""
        # A read in progress may add an old answer afterwards, but under an old serial, which is not used again.
        with self._lock:
            self._held.clear()
            self._held_bytes = 0
        self.array_check.clear()

    def lookup(
        self, arrays: Sequence[ArrayMeta], which: IntArray, number: IntArray, coords: IntArray
    ) -> tuple[FileFacts, ...]:
        """Return the facts of F different files, in their order.

        Args:
            arrays: arrays.
            which: int64[F], index of each file's array.
            number: int64[F], index of the file in its array's grid of files.
            coords: int64[F, ndim], the same as coordinates.
        """
        owners = which.tolist()
        serials = {owner: self._serial(arrays[owner]) for owner in set(owners)}
        keys = [(serials[owner], at) for owner, at in zip(owners, number.tolist(), strict=True)]
        with self._lock:
            found = {key: self._held[key] for key in keys if key in self._held}
            for key in found:
                self._held.move_to_end(key)
            self.num_recalled += len(found)
        new = [at for at, key in enumerate(keys) if key not in found]
        if new:
            # Without the lock: this may take a second, and other threads plan other files meanwhile.
            read = self._read([arrays[owners[at]] for at in new], coords[new].tolist())
            found |= dict(zip([keys[at] for at in new], read, strict=True))
            self._keep([(keys[at], facts) for at, facts in zip(new, read, strict=True) if facts.error is None])
        gone: dict[int, DataError | OSError | None] = {}
        for key, owner in zip(keys, owners, strict=True):
            if not found[key].exists:  # its chunks are the fill value, but only if there is an array
                if owner not in gone:
                    gone[owner] = self._array_error(arrays[owner])
                if gone[owner] is not None:
                    found[key] = FileFacts(path=found[key].path, error=gone[owner])
        return tuple([found[key] for key in keys])

    def _read(self, arrays: list[ArrayMeta], coords: list[list[int]]) -> list[FileFacts]:
        """Read facts; storage errors that may be temporary are returned only if they persist."""
        paths = [f"{array.place}/{array.keys.key(tuple(at))}" for array, at in zip(arrays, coords, strict=True)]
        # there is no request for an object that is one chunk before it is read
        found = [
            FileFacts(path=path, size=_UNASKED) if array.is_remote else _read_local(array, path)
            for array, path in zip(arrays, paths, strict=True)
        ]

        def read_again(at: int) -> None:
            free_handles(found[at].error)
            found[at] = _read_local(arrays[at], paths[at])

        retries = retry_failed(lambda: [at for at, facts in enumerate(found) if is_temporary(facts.error)], read_again)
        with self._lock:
            self.num_retries += retries
        shards = {at: array.index for at, array in enumerate(arrays) if array.is_remote and array.index is not None}
        if shards:
            answers = _read_remote([(paths[at], layout) for at, layout in shards.items()], self._remote)
            for at, facts in zip(shards, answers, strict=True):
                found[at] = facts
        return found

    def _keep(self, read: list[tuple[tuple[int, int], FileFacts]]) -> None:
        with self._lock:
            self.num_looked_at += len(read)
            for key, facts in read:
                old = self._held.pop(key, None)  # another thread may have read it at the same time
                self._held[key] = facts
                self._held_bytes += facts.num_bytes - (0 if old is None else old.num_bytes)
            most = len(self._held) if self._most_files is None else self._most_files
            while len(self._held) > 1 and (self._held_bytes > self._capacity or len(self._held) > most):
                self._held_bytes -= self._held.popitem(last=False)[1].num_bytes

    def _array_error(self, array: ArrayMeta) -> DataError | OSError | None:
        """Return the error of an array that was moved or unmounted."""
        if array.is_remote:
            return self.array_check.trouble(array)
        if any((Path(array.place) / name).exists() for name in ("zarr.json", ".zarray")):
            return None
        return FileNotFoundError(
            f"the array {array.place} was moved, deleted or unmounted after it was opened: restore it"
        )


def _read_local(array: ArrayMeta, path: str) -> FileFacts:
    try:
        status = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return FileFacts(path=path, size=_ABSENT)
    except OSError as error:
        return FileFacts(path=path, error=error)
    if not stat.S_ISREG(status.st_mode):
        refused = DataError(f"{path} should be a chunk of an array, but is not a regular file")
        return FileFacts(path=path, error=refused)
    try:
        index = None if array.index is None else read_index(Path(path), array.index).reshape(-1, 2)
    except (DataError, OSError) as error:
        return FileFacts(path=path, error=error)
    return FileFacts(path=path, size=status.st_size, identity=identity_of(status), index=index)


def _read_remote(shards: list[tuple[str, IndexLayout]], remote: RemoteFiles) -> list[FileFacts]:
    """Return the facts of shards; their indexes are requested concurrently, as far as the options allow."""
    found: list[FileFacts] = [FileFacts(path=path, size=_ABSENT) for path, _ in shards]
    for at_end, read in ((True, remote.read_tails), (False, remote.read_heads)):
        members = [at for at, (_, layout) in enumerate(shards) if layout.at_end == at_end]
        parts = read((path, layout.num_bytes) for path, layout in (shards[at] for at in members))
        for at, part in zip(members, parts, strict=True):
            path, layout = shards[at]
            if isinstance(part, DataError):
                found[at] = FileFacts(path=path, error=part)
            elif part is not None:
                found[at] = _of_part(path, layout, part)
    return found


def _of_part(path: str, layout: IndexLayout, part: Part) -> FileFacts:
    try:
        index = decode_index(bytes(part.data), layout, size=part.size, place=path).reshape(-1, 2)
    except DataError as error:
        return FileFacts(path=path, error=error)
    return FileFacts(path=path, size=part.size, index=index, etag=part.etag)
