"""Compiled: the loop over chunks, and from a chunk's elements to their places in the output.

This module imports numba: import it late.
"""

from __future__ import annotations

from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.dense_placing import fetch_columns, finish_rows, spread
from rankwise.data.store.decode.fetching import fetch
from rankwise.data.store.decode.machine import call_plane, entry, get, inlined, put8, put32, real_entry, streamed
from rankwise.data.store.decode.tasks import SLOTS

__all__ = ["run_chunks"]

_OK, _OUT_OF_RANGE = codes.OK, codes.OUT_OF_RANGE
_FIRST, _LAST, _AXES, _STATUS = SLOTS["first"], SLOTS["last"], SLOTS["axes"], SLOTS["status"]
_BOUNDS, _UNFIT, _SOURCE, _STRIDED = SLOTS["bounds"], SLOTS["unfit"], SLOTS["source"], SLOTS["strided"]
_SRC_FIRST, _EXTENTS, _SRC_STRIDES = SLOTS["src_first"], SLOTS["extents"], SLOTS["src_strides"]
_DST_START, _STRIDES, _OUT, _PLANE = SLOTS["dst_start"], SLOTS["strides"], SLOTS["out"], SLOTS["plane"]
_SCALE, _OFFSET, _DST_UNIT, _COL_UNIT = SLOTS["scale"], SLOTS["offset_"], SLOTS["dst_unit"], SLOTS["col_unit"]
_STAGE, _STREAM, _SPREAD = SLOTS["stage"], SLOTS["stream"], SLOTS["spread"]


def run_chunks(job: int) -> int:
    """Read, decode and place the chunks from `first` to `last` of a job; returns 0."""
    for chunk in range(get(job, _FIRST), get(job, _LAST)):
        status = fetch_columns(job, chunk)
        if status == _OK:
            status = fetch(job, chunk)
        if status == _OK:
            for target in range(entry(job, _BOUNDS, chunk), entry(job, _BOUNDS, chunk + 1)):
                unfit = _place(job, chunk, target) if get(job, _SPREAD) == 0 else spread(job, chunk, target)
                if unfit != 0:
                    put8(job, _UNFIT, target, 1)
                    status = _OUT_OF_RANGE
        put32(job, _STATUS, chunk, status)
    finish_rows(job)
    streamed()
    return 0


@inlined
def _place(job: int, chunk: int, target: int) -> int:
    """Cast a region plane by plane; returns whether a value does not fit."""
    axes, unit, strided = get(job, _AXES), get(job, _DST_UNIT), get(job, _STRIDED)
    src = get(job, _SOURCE) + entry(job, _SRC_FIRST, target) * strided
    dst = get(job, _OUT) + entry(job, _DST_START, target) * unit
    last, mine = target * axes + axes - 1, chunk * axes + axes - 1
    cols, rows, src_step, dst_step = entry(job, _EXTENTS, last) * get(job, _COL_UNIT), 1, 0, 0
    if axes > 1:
        rows, src_step = entry(job, _EXTENTS, last - 1), entry(job, _SRC_STRIDES, mine - 1) * strided
        dst_step = entry(job, _STRIDES, axes - 2) * unit
    planes = 1
    for axis in range(2, axes):
        planes *= entry(job, _EXTENTS, last - axis)
    scale, offset = 1.0, 0.0
    if get(job, _SCALE) != 0:
        scale, offset = real_entry(job, _SCALE, target), real_entry(job, _OFFSET, target)
    unfit = 0
    for plane in range(planes):
        src_at, dst_at, rest = src, dst, plane
        for axis in range(2, axes):
            extent = entry(job, _EXTENTS, last - axis)
            at = rest % extent
            src_at += at * strided * entry(job, _SRC_STRIDES, mine - axis)
            dst_at += at * unit * entry(job, _STRIDES, axes - 1 - axis)
            rest //= extent
        if get(job, _STREAM) == 0:
            unfit |= call_plane(get(job, _PLANE), src_at, dst_at, rows, cols, src_step, dst_step, scale, offset)
        else:
            unfit |= _staged(job, src_at, dst_at, rows, cols, src_step, dst_step, scale, offset)
    return unfit


@inlined
def _staged(  # noqa: PLR0917
    job: int, src: int, dst: int, rows: int, cols: int, src_step: int, dst_step: int, scale: float, offset: float
) -> int:
    """Cast row by row into memory that stays in the caches, and write from there past them."""
    stage, unit, unfit = get(job, _STAGE), get(job, _DST_UNIT), 0
    for row in range(rows):
        unfit |= call_plane(get(job, _PLANE), src + row * src_step, stage, 1, cols, 0, 0, scale, offset)
        call_plane(get(job, _STREAM), stage, dst + row * dst_step, 1, cols * unit, 0, 0, 1.0, 0.0)
    return unfit
