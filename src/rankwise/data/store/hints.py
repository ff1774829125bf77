"""Telling the system which bytes will be read soon."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.files import HandleCache
from rankwise.data.store.plan import BoxPlan

__all__ = ["advise_plans", "fused"]

_GAP_BYTES = 16 * 2**10  # four pages: the disk reads on through smaller gaps anyway
_MOST_BYTES = 8 * 2**20  # of one hint
_FEWEST_CHUNKS = 2


def advise_plans(
    plans: Sequence[BoxPlan], handles: HandleCache, *, kept: Callable[[BoxPlan], BoolArray] | None
) -> None:
    """Call ``posix_fadvise(WILLNEED)`` for the bytes of plans, neighbours fused. Best effort: says nothing.

    Args:
        plans: what will be read.
        handles: open files.
        kept: tells which chunks of a plan, bool[K], need no reading; None = all need it.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for plan in plans:
        advise_plans([odd.plan for odd in plan.odd], handles, kept=kept)
        chunks = plan.chunks
        wanted = chunks.offset >= 0
        if kept is not None:
            wanted &= ~kept(plan)
        file, offset, length = (column[wanted] for column in (chunks.file, chunks.offset, chunks.length))
        for number, begin, size in zip(*(part.tolist() for part in fused(file, offset, length)), strict=True):
            facts = plan.files[number]
            if facts.is_remote:
                continue
            try:
                _advise(handles.get(facts.path).fd, begin, size)
            except OSError:
                continue  # reading it will say what is wrong


def _advise(fd: int, begin: int, size: int) -> None:
    if size > 0 and _in_memory(fd, begin) and _in_memory(fd, begin + size - 1):
        return  # a hint would walk all pages to find out that nothing is to be done: ten times the cost of two looks
    os.posix_fadvise(fd, begin, max(0, size), os.POSIX_FADV_WILLNEED)


def _in_memory(fd: int, offset: int) -> bool:
    """Whether the byte of a file can be read without waiting for storage."""
    try:
        return bool(os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT))
    except (AttributeError, OSError):  # another system; a file system that cannot tell; or it would have to wait
        return False


def fused(file: IntArray, offset: IntArray, length: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Join byte ranges of the same file that touch or nearly do, up to 8 MiB each.

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
