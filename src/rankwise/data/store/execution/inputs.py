"""Provides the bytes of chunks to decoders: from open files, or from an object store; and read-ahead hints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.decode import KIND_FILL, ChunkTasks, address_of
from rankwise.data.store.execution.context import ReaderContext
from rankwise.data.store.execution.failures import REPLACED, ChunkFailure
from rankwise.data.store.files import FileFacts, HandleCache, OpenFile
from rankwise.data.store.plan import BoxPlan
from rankwise.data.store.remote import PendingReads, RemoteRange
from rankwise.errors import DataError

__all__ = ["NO_FILE", "Fetched", "advise_plans", "merge_ranges", "open_files", "start_fetch"]

NO_FILE = -1


def open_files(
    plan: BoxPlan, chosen: IntArray, tasks: ChunkTasks, handles: HandleCache, *, first: int, last: int
) -> tuple[list[OpenFile], dict[int, ChunkFailure]]:
    """Open the files of chunks and write their descriptors to the decoder's tables.

    Returns:
        The handles, which the caller must hold while reading; and the failures.
    """
    held: list[OpenFile] = []
    failed: dict[int, ChunkFailure] = {}
    needed = _needed(tasks, first, last)
    files = plan.chunks.file[chosen[first:last]]
    for file in _different(files[needed]):
        facts = plan.files[file]
        if facts.is_remote:
            continue
        members = first + np.flatnonzero(needed & (files == file))
        found = _opened(facts, handles)
        if isinstance(found, ChunkFailure):
            tasks.fd[members] = NO_FILE  # that of an earlier try may belong to another file by now
            failed |= dict.fromkeys(members.tolist(), found)
            continue
        tasks.fd[members] = found.fd
        held.append(found)
    return held, failed


def _opened(facts: FileFacts, handles: HandleCache) -> OpenFile | ChunkFailure:
    try:
        handle = handles.get(facts.path)
        if handle.identity != facts.identity:  # an old handle, or another file by now
            handles.forget(facts.path)
            handle = handles.get(facts.path)
    except OSError as error:
        return ChunkFailure(f"cannot be read: its file cannot be opened: {error}", damage=False, cause=error)
    return handle if handle.identity == facts.identity else ChunkFailure(REPLACED)


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Bytes requested from object stores.

    Attributes:
        places: int64[n], the chunks, as rows of the decoder's tables.
        pending: their bytes, in the same order.
        trouble: for a missing chunk, returns whether its whole array is missing.
    """

    places: IntArray
    pending: PendingReads[memoryview]
    trouble: Callable[[int], DataError | None]

    def receive(self, tasks: ChunkTasks) -> tuple[list[object], dict[int, ChunkFailure]]:
        """Wait for them and write their addresses; return objects that the caller must hold, and the failures."""
        held: list[object] = []
        failed: dict[int, ChunkFailure] = {}
        for at, piece in zip(self.places.tolist(), self.pending.result(), strict=True):
            if piece is None:  # no such object: a chunk that was never written
                tasks.kind[at] = KIND_FILL
                piece = self.trouble(at)  # noqa: PLW2901
            if isinstance(piece, DataError):
                damage = bool(getattr(piece, "damage", True))
                failed[at] = ChunkFailure(f"cannot be read: {piece}".rstrip("."), damage=damage, cause=piece)
            elif piece is not None:
                encoded = np.frombuffer(piece, dtype=np.uint8)
                tasks.encoded[at], tasks.length[at] = address_of(encoded), len(encoded)
                held.append(encoded)
        return held, failed


def start_fetch(
    plan: BoxPlan, chosen: IntArray, tasks: ChunkTasks, context: ReaderContext, *, first: int, last: int
) -> Fetched | None:
    """Request the bytes of those chunks that are behind URLs; None if there are none."""
    far = [facts.is_remote for facts in plan.files]
    if not any(far):
        return None
    file = plan.chunks.file[chosen[first:last]]
    wanted = np.flatnonzero(_needed(tasks, first, last) & np.array(far, dtype=np.bool_)[file])
    ranges = [_range(plan, int(chosen[first + at])) for at in wanted.tolist()]
    return Fetched(
        places=first + wanted,
        pending=context.remote.start(ranges),
        trouble=lambda at: context.array_check.trouble(plan.request.arrays[int(plan.chunks.array[chosen[at]])]),
    )


def _range(plan: BoxPlan, chunk: int) -> RemoteRange:
    facts = plan.files[int(plan.chunks.file[chunk])]
    length = int(plan.chunks.length[chunk])
    if length < 0:
        return RemoteRange(url=facts.path)
    return RemoteRange(url=facts.path, offset=int(plan.chunks.offset[chunk]), length=length, etag=facts.etag)


def _different(files: IntArray) -> list[int]:
    if len(files) and files[0] == files[-1]:  # ascending: one shard has them all
        return [int(files[0])]
    distinct: list[int] = np.unique(files).tolist()
    return distinct


def _needed(tasks: ChunkTasks, first: int, last: int) -> BoolArray:
    """Return which chunks have to be read."""
    needed: BoolArray = (tasks.kind[first:last] != KIND_FILL) & (tasks.decoded[first:last] == 0)
    return needed


_GAP_BYTES = 16 * 2**10  # four pages: the disk reads through smaller gaps anyway
_MOST_BYTES = 8 * 2**20  # of one hint
_FEWEST_CHUNKS = 2


def advise_plans(
    plans: Sequence[BoxPlan], handles: HandleCache, *, kept: Callable[[BoxPlan], BoolArray] | None
) -> None:
    """Call ``posix_fadvise(WILLNEED)`` for the bytes of plans, with neighbours merged. Best effort: reports no errors.

    Args:
        plans: plans to be read.
        handles: open files.
        kept: returns which chunks of a plan, bool[K], need no reading; None = all need it.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for plan in plans:
        advise_plans([padded.plan for padded in plan.padded], handles, kept=kept)
        chunks = plan.chunks
        wanted = chunks.offset >= 0
        if kept is not None:
            wanted &= ~kept(plan)
        file, offset, length = (column[wanted] for column in (chunks.file, chunks.offset, chunks.length))
        for number, begin, size in zip(*(part.tolist() for part in merge_ranges(file, offset, length)), strict=True):
            facts = plan.files[number]
            if facts.is_remote:
                continue
            try:
                _advise(handles.get(facts.path).fd, begin, size)
            except OSError:
                continue  # reading it will report the error


def _advise(fd: int, begin: int, size: int) -> None:
    if size > 0 and _in_memory(fd, begin) and _in_memory(fd, begin + size - 1):
        return  # a hint would visit all pages without effect: ten times the cost of two checks
    os.posix_fadvise(fd, begin, max(0, size), os.POSIX_FADV_WILLNEED)


def _in_memory(fd: int, offset: int) -> bool:
    """Whether a byte of a file can be read without waiting for storage."""
    try:
        return bool(os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT))
    except (AttributeError, OSError):  # another system; a file system without support; or it would have to wait
        return False


def merge_ranges(file: IntArray, offset: IntArray, length: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Join byte ranges of the same file that touch or nearly touch, up to 8 MiB each.

    Args:
        file: int64[K], ascending.
        offset: int64[K], ascending in each file.
        length: int64[K].

    Returns:
        file, offset and length of the joined ranges.
    """
    if len(file) < _FEWEST_CHUNKS:
        return file, offset, length
    end = offset + length
    apart = (file[1:] != file[:-1]) | (offset[1:] - end[:-1] > _GAP_BYTES)
    apart |= end[1:] // _MOST_BYTES != end[:-1] // _MOST_BYTES
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    last = np.concatenate([first[1:], [len(file)]]) - 1
    return file[first], offset[first], end[last] - offset[first]
