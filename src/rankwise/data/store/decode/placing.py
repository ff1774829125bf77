"""Compiled: the loop over chunks, and from a chunk's elements to their places in the output.

This module imports numba: import it late.
"""

from __future__ import annotations

from rankwise.data.store.decode import status as codes
from rankwise.data.store.decode.fetching import fetch
from rankwise.data.store.decode.job import SLOTS
from rankwise.data.store.decode.machine import call_plane, entry, inlined, peek, peek_double, poke, poke8, poke32

__all__ = ["run_chunks"]

_OK, _OUT_OF_RANGE = codes.OK, codes.OUT_OF_RANGE
_FIRST, _LAST, _AXES, _STATUS = SLOTS["first"], SLOTS["last"], SLOTS["axes"], SLOTS["status"]
_SHAPE, _BOUNDS, _UNFIT = SLOTS["chunk_shape"], SLOTS["bounds"], SLOTS["unfit"]
_START, _EXTENT, _DST_START, _DST_STRIDES = (SLOTS[n] for n in ("src_start", "extent", "dst_start", "dst_strides"))
_SCALE, _OFFSET, _OUT, _PLANE, _SOURCE = (SLOTS[n] for n in ("scale", "offset_", "out", "plane", "source"))
_SRC_UNIT, _DST_UNIT, _COL_UNIT = SLOTS["src_unit"], SLOTS["dst_unit"], SLOTS["col_unit"]
_STRIDED, _NUM_AXES, _WORK = SLOTS["strided"], SLOTS["num_axes"], SLOTS["work"]


def run_chunks(job: int) -> int:
    """Read, decode and place the chunks from `first` to `last` of a job; returns 0."""
    for chunk in range(peek(job + _FIRST), peek(job + _LAST)):
        status = fetch(job, chunk)
        if status == _OK:
            status = _place(job, chunk)
        poke32(peek(job + _STATUS) + 4 * chunk, status)
    return 0


@inlined
def _place(job: int, chunk: int) -> int:
    status = _OK
    for target in range(entry(job, _BOUNDS, chunk), entry(job, _BOUNDS, chunk + 1)):
        first = _lay_out(job, chunk, target)
        if _spread(job, target, first) != 0:
            poke8(peek(job + _UNFIT) + target, 1)
            status = _OUT_OF_RANGE
    return status


@inlined
def _lay_out(job: int, chunk: int, target: int) -> int:
    """Write a region's axes into the job, innermost first, those merged that are contiguous on both sides.

    Returns the element of the chunk where the region begins.
    """
    axes, strided, work = peek(job + _AXES), peek(job + _STRIDED), job + _WORK
    src_step, first, num = peek(job + _SRC_UNIT) * strided, 0, 0
    for axis in range(axes - 1, -1, -1):
        extent = entry(job, _EXTENT, target * axes + axis)
        dst_step = entry(job, _DST_STRIDES, axis) * peek(job + _DST_UNIT)
        first += entry(job, _START, target * axes + axis) * src_step
        if num == 0 or extent > 1:
            at = work + 8 * (num - 1)
            merges = num > 0 and strided != 0 and src_step == peek(at) * peek(at + 8 * axes)
            if merges and dst_step == peek(at) * peek(at + 16 * axes):
                poke(at, peek(at) * extent)
            else:
                poke(at + 8, extent)
                poke(at + 8 + 8 * axes, src_step)
                poke(at + 8 + 16 * axes, dst_step)
                num += 1
        src_step *= entry(job, _SHAPE, chunk * axes + axis)
    poke(job + _NUM_AXES, num)
    return first


@inlined
def _spread(job: int, target: int, first: int) -> int:
    """Cast a region plane by plane; returns whether a value does not fit."""
    axes, num, work = peek(job + _AXES), peek(job + _NUM_AXES), job + _WORK
    src = peek(job + _SOURCE) + first
    dst = peek(job + _OUT) + entry(job, _DST_START, target) * peek(job + _DST_UNIT)
    cols, rows, src_step, dst_step = peek(work) * peek(job + _COL_UNIT), 1, 0, 0
    if num > 1:
        rows, src_step, dst_step = peek(work + 8), peek(work + 8 + 8 * axes), peek(work + 8 + 16 * axes)
    scale, offset = 1.0, 0.0
    if peek(job + _SCALE) != 0:
        scale, offset = peek_double(peek(job + _SCALE) + 8 * target), peek_double(peek(job + _OFFSET) + 8 * target)
    for axis in range(2, num):
        poke(work + 24 * axes + 8 * axis, 0)
    unfit, axis = 0, 0
    while axis < num:
        unfit |= call_plane(peek(job + _PLANE), src, dst, rows, cols, src_step, dst_step, scale, offset)
        axis = 2
        while axis < num:
            at = work + 8 * axis
            extent, src_by, dst_by, done = peek(at), peek(at + 8 * axes), peek(at + 16 * axes), peek(at + 24 * axes) + 1
            src, dst = src + src_by, dst + dst_by
            if done < extent:
                poke(at + 24 * axes, done)
                break
            poke(at + 24 * axes, 0)
            src, dst, axis = src - src_by * extent, dst - dst_by * extent, axis + 1
    return unfit
