"""Tells the system which bytes will be read soon."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.files import HandleCache
from rankwise.data.store.plan import BoxPlan

_GAP_BYTES = 16 * 2**10  # four pages: the disk reads through smaller gaps anyway
_MOST_BYTES = 8 * 2**20  # of one hint
_FEWEST_CHUNKS = 2


def advise_plans(plans: Sequence[BoxPlan], handles: HandleCache, *, needed: Callable[[BoxPlan], BoolArray]) -> None:
    """Call ``posix_fadvise(WILLNEED)`` for the bytes of plans, with neighbours merged. Best effort: reports no errors.

    Args:
        plans: plans to be read.
        handles: open files.
        needed: returns which chunks of a plan, bool[K], have to be read.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for plan in plans:
        for padded in plan.padded:
            advise_plans([padded.plan], handles, needed=needed)
        wanted = np.flatnonzero(needed(plan))
        ranges = merge_ranges(plan.chunks.file[wanted], plan.chunks.offset[wanted], plan.chunks.length[wanted])
        for number, begin, size in np.stack(ranges, axis=1).tolist():
            facts = plan.files[number]
            if facts.is_remote:
                continue
            try:
                fd = handles.get(facts.path).fd
                # a hint visits all pages, also where it has no effect: ten times the cost of two checks
                if not (size > 0 and _in_memory(fd, begin) and _in_memory(fd, begin + size - 1)):
                    os.posix_fadvise(fd, begin, max(0, size), os.POSIX_FADV_WILLNEED)
            except OSError:
                continue  # reading it will report the error


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
