"""What is known of a file before its data are read, and whether arrays still are what they were."""

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

__all__ = ["PAUSES_S", "FileAddress", "FileBook", "FileFacts", "Standing", "is_passing"]

PAUSES_S = (0.05, 0.25, 1.0)

# What a network file system or a busy device answers once and not the next time.
_PASSING = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EAGAIN", "EINTR", "ESTALE", "ETIMEDOUT", "EBUSY", "ENOBUFS", "ENFILE", "EMFILE", "ECONNRESET")
    if hasattr(errno, name)
)


def is_passing(error: object) -> bool:
    """Whether an error, or the number of one, may be gone on the next try."""
    number = error.errno if isinstance(error, OSError) else error
    return number in _PASSING


_MOST_STAMPS = 2**16
LOOK_AGAIN_S = 0.5
_V3 = 3


class Standing:
    """Looks at the metadata of arrays again; thread-safe.

    Behind a URL it asks once, when the first of an array's objects is missing: missing objects are the fill value only
    where the array is there. On local disks it asks the system, at each read, whether the document was written since.

    Args:
        remote: returns the reader of object stores.
    """

    def __init__(self, remote: Callable[[], RemoteFiles]) -> None:
        self._remote = remote
        self._known: dict[str, DataError | None] = {}
        self._stamps: dict[str, Stamp | None] = {}
        self._looked_s: dict[str, float] = {}
        # For what is known and the stamps; disks and stores are asked outside, for as long as that takes. Two threads
        # may ask about the same array: they hear the same.
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Ask again."""
        with self._lock:
            self._known.clear()
            self._stamps.clear()
            self._looked_s.clear()

    def is_due(self, path: str, now_s: float) -> bool:
        """Return whether a file of one chunk should be looked at again, and count it as looked at if so.

        It is whole, old or new, whenever it was read, and loaders read ahead by more than this: asking the system about
        every file of every batch would cost a tenth where chunks are small and kept decoded.
        """
        # Without the lock, for it is asked about every file of every batch. Each line is one step for all threads: at
        # worst two of them look at the same file, or all files once too often.
        if now_s - self._looked_s.get(path, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return False
        if len(self._looked_s) >= _MOST_STAMPS:
            self._looked_s.clear()
        self._looked_s[path] = now_s
        return True

    def suspect(self, path: str) -> None:
        """Look at a file that has changed at every read from now on: it must not pass for what it was in between."""
        self._looked_s.pop(path, None)

    def changed(self, array: ArrayMeta) -> DataError | None:
        """Return what is wrong with a local array that was resized, replaced or removed since its first read."""
        name = "zarr.json" if array.zarr_format == _V3 else ".zarray"
        # Taken before the document is read: what is written in between has another stamp at the next look.
        stamp = stamp_document(array.place, name)
        with self._lock:
            # the first thread that reads an array says what all later looks are compared with
            if self._stamps.setdefault(array.place, stamp) == stamp:
                if len(self._stamps) > _MOST_STAMPS:
                    del self._stamps[next(iter(self._stamps))]
                return None
        try:
            now = read_meta(array.place)
        except DataError as error:
            return DataError(f"belongs to an array that has gone or cannot be opened any more: {error}")
        if now.fingerprint != array.fingerprint:
            return DataError(
                f"belongs to an array that was written anew or resized since it was opened (shape {array.shape} then, "
                f"{now.shape} now): open it anew, and do not write to it while it is read"
            )
        with self._lock:  # attributes do not matter
            self._stamps[array.place] = stamp
        return None

    def trouble(self, array: ArrayMeta) -> DataError | None:
        """Return what is wrong with an array as a whole, None if it is there. Trouble that may pass is not kept."""
        with self._lock:
            if array.place in self._known:
                return self._known[array.place]
        url = f"{array.place}/{'zarr.json' if array.zarr_format == _V3 else '.zarray'}"
        try:
            found = self._remote().size(url)
        except DataError as error:
            return error
        gone = f"the array {array.place} has gone since it was opened (moved or deleted): bring it back, open it anew"
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
        size: bytes; -1 if the file does not exist (its chunks were never written), -2 if nobody has asked.
        identity: device, inode, size and time of change (ns) of a local file; tells whether it was replaced later.
        etag: the version of a remote object, None if unknown.
        index: int64[chunks of a shard, 2], offset and length of each, see `read_index`; None where the whole file is
            one chunk.
    """

    path: str
    size: int
    identity: tuple[object, ...]
    index: IntArray | None
    etag: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there is such a file, as far as known."""
        return self.size != _ABSENT

    @property
    def is_remote(self) -> bool:
        """Whether it lies behind a URL."""
        return "://" in self.path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileAddress:
    """A file of an array, by coordinates.

    Attributes:
        serial: tells arrays apart.
        number: the file's place in the array's grid of files.
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


class FileBook:
    """Looks at each file once and remembers the last ones; thread-safe.

    Files that do not exist are remembered too; one that is made later is an error where it is read (`changed_chunks`).

    Args:
        remote: returns the reader of object stores.
        capacity_bytes: most bytes of remembered indexes, about.
        most_files: most files that are remembered; None = as many as the bytes allow.

    Attributes:
        standing: whether arrays behind URLs are still there.
    """

    def __init__(
        self,
        remote: Callable[[], RemoteFiles],
        capacity_bytes: int = _CAPACITY_BYTES,
        *,
        most_files: int | None = None,
    ) -> None:
        self._remote = remote
        self._capacity = capacity_bytes
        self._most_files = most_files
        self._held: OrderedDict[tuple[int, int], FileFacts] = OrderedDict()
        self._held_bytes = 0
        # For the table, its bytes and the counts. Facts never change: what was found may be used without it.
        self._lock = threading.Lock()
        self.standing = Standing(remote)
        self.num_looked_at = self.num_recalled = 0
        self.num_retries = 0

    def forget(self) -> None:
        """Look at every file anew."""
        # A look that is under way puts an old answer back afterwards, under an old serial: nobody asks for that again.
        with self._lock:
            self._held.clear()
            self._held_bytes = 0
        self.standing.forget()

    def recall(self, keys: Sequence[tuple[int, int]]) -> list[FileFacts | None]:
        """Return the facts of files that were looked at already, None for the others.

        Args:
            keys: serial of the array and number of the file, see `FileAddress`.
        """
        with self._lock:
            found = [self._touch(key) for key in keys]
            self.num_recalled += sum(facts is not None for facts in found)
            return found

    def look(self, files: Sequence[FileAddress]) -> list[FileFacts | DataError | OSError]:
        """Return the facts of files, in their order; in the place of a file that cannot be looked at, its error.

        A DataError tells that a file is no file, is shorter than its index, or that the index is damaged. Trouble with
        the storage that may pass is told only when it stays.
        """
        with self._lock:
            found: list[FileFacts | DataError | OSError | None] = [
                self._touch((file.serial, file.number)) for file in files
            ]
        # From here on without the lock: a look may take a second, and other threads plan other files meanwhile.
        absent = [at for at, facts in enumerate(found) if facts is None]
        far = [at for at in absent if files[at].array.is_remote]
        for at, answer in zip(far, look_at_remote([files[k] for k in far], self._remote), strict=True):
            found[at] = answer
        for at in absent:
            found[at] = found[at] or _caught(files[at])
        self._try_again(files, found)
        for at in absent:
            seen = found[at]
            if isinstance(seen, FileFacts):
                with self._lock:
                    self._keep((files[at].serial, files[at].number), seen)
        return [facts for facts in found if facts is not None]

    def _try_again(self, files: Sequence[FileAddress], found: list[FileFacts | DataError | OSError | None]) -> None:
        for pause in PAUSES_S:
            waiting = [at for at, answer in enumerate(found) if is_passing(answer)]
            if not waiting:
                return
            time.sleep(pause)
            for at in waiting:
                found[at] = _caught(files[at])
            with self._lock:
                self.num_retries += len(waiting)

    def _touch(self, key: tuple[int, int]) -> FileFacts | None:
        facts = self._held.get(key)
        if facts is not None:
            self._held.move_to_end(key)
        return facts

    def _keep(self, key: tuple[int, int], facts: FileFacts) -> None:
        self.num_looked_at += 1
        old = self._held.pop(key, None)  # another thread may have looked at the same time
        self._held_bytes -= 0 if old is None else _weight(old)
        self._held[key] = facts
        self._held_bytes += _weight(facts)
        while len(self._held) > 1 and (self._held_bytes > self._capacity or self._too_many()):
            _, old = self._held.popitem(last=False)
            self._held_bytes -= _weight(old)

    def _too_many(self) -> bool:
        return self._most_files is not None and len(self._held) > self._most_files


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
        raise DataError(f"{path} should be a chunk of an array and is no regular file")
    index = None
    if array.index is not None:
        index = read_index(Path(path), array.index).reshape(math.prod(array.index.chunks_per_shard), 2)
    return FileFacts(path=path, size=status.st_size, identity=identity_of(status), index=index)


def look_at_remote(files: Sequence[FileAddress], remote: Callable[[], RemoteFiles]) -> list[FileFacts | DataError]:
    """Return the facts of objects: the indexes of shards in as many requests at once as the options allow.

    An object that is one chunk is not asked for before it is read.
    """
    answers: list[FileFacts | DataError] = [
        FileFacts(path=file.path, size=_UNASKED, identity=(), index=None) for file in files
    ]
    for at_end in (True, False):
        shards = [k for k, file in enumerate(files) if file.array.index and file.array.index.at_end == at_end]
        if not shards:
            continue
        wanted = [(files[k].path, _layout(files[k]).num_bytes) for k in shards]
        parts = remote().read_tails(wanted) if at_end else remote().read_heads(wanted)
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
