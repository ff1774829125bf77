"""Compiled: the loop over chunks, which places their elements in the output, also in dense rows.

This module imports numba: import it late.
"""

from __future__ import annotations

from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.fetching import fetch
from rankwise.data.store.decode.machine import (
    call_plane,
    entry,
    get,
    inlined,
    put,
    put8,
    put32,
    real_entry,
    streamed,
)
from rankwise.data.store.decode.tasks import SLOTS

__all__ = ["run_chunks"]

_OK, _OUT_OF_RANGE = codes.OK, codes.OUT_OF_RANGE
_LAST, _BOUNDS, _STATUS, _UNFIT = SLOTS["last"], SLOTS["bounds"], SLOTS["status"], SLOTS["unfit"]
_SOURCE, _STRIDED, _SRC_FIRST, _EXTENTS = SLOTS["source"], SLOTS["strided"], SLOTS["src_first"], SLOTS["extents"]
_DST_START, _DST_UNIT, _OUT = SLOTS["dst_start"], SLOTS["dst_unit"], SLOTS["out"]
_PLANE, _STAGE = SLOTS["plane"], SLOTS["stage"]
_SPREAD, _COLUMNS, _COLUMN_BYTES, _WIDTH = SLOTS["spread"], SLOTS["columns"], SLOTS["column_bytes"], SLOTS["width"]
_TABLES, _PLACES, _NUM_COLS = SLOTS["tables"], SLOTS["places"], SLOTS["num_cols"]
_ITS_PLACES, _ITS_NUM_COLS = SLOTS["its_places"], SLOTS["its_num_cols"]
_ROWS, _ROW_LENGTHS, _MARKS = SLOTS["rows"], SLOTS["row_lengths"], SLOTS["marks"]
_FIRST, _AXES, _STRIDES, _SRC_STRIDES = SLOTS["first"], SLOTS["axes"], SLOTS["strides"], SLOTS["src_strides"]
_SCALE, _OFFSET, _COL_UNIT = SLOTS["scale"], SLOTS["offset_"], SLOTS["col_unit"]


@inlined
def spread(job: int, target: int) -> int:
    """Write elements to their dense row, cast first if necessary; return whether a value does not fit."""
    row, count, table = entry(job, _ROWS, target), entry(job, _EXTENTS, target), entry(job, _TABLES, target)
    whole = 1 if entry(job, _ROW_LENGTHS, target) == count else 0
    put(job, _ITS_PLACES, entry(job, _PLACES, table))
    put(job, _ITS_NUM_COLS, entry(job, _NUM_COLS, table))
    src, unfit = get(job, _SOURCE) + entry(job, _SRC_FIRST, target) * get(job, _STRIDED), 0
    if get(job, _PLANE) != 0:
        unfit = call_plane(get(job, _PLANE), src, get(job, _STAGE), 1, count, 0, 0, 1.0, 0.0)
        src = get(job, _STAGE)
    columns = get(job, _COLUMNS) + entry(job, _DST_START, target) * get(job, _COLUMN_BYTES)
    dst = get(job, _OUT) + row * get(job, _WIDTH) * get(job, _DST_UNIT)
    put8(job, _MARKS, target, call_plane(get(job, _SPREAD), src, dst, columns, count, whole, job, 0.0, 0.0))
    return unfit


def run_chunks(job: int) -> int:
    """Read, decode and place the chunks from `first` to `last` of a job; return 0."""
    for chunk in range(get(job, _FIRST), get(job, _LAST)):
        status = fetch(job, chunk)
        if status == _OK:
            for target in range(entry(job, _BOUNDS, chunk), entry(job, _BOUNDS, chunk + 1)):
                unfit = _place(job, chunk, target) if get(job, _SPREAD) == 0 else spread(job, target)
                if unfit != 0:
                    put8(job, _UNFIT, target, 1)
                    status = _OUT_OF_RANGE
        put32(job, _STATUS, chunk, status)
    streamed()
    return 0


@inlined
def _place(job: int, chunk: int, target: int) -> int:
    """Cast a region plane by plane; return whether a value does not fit."""
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
        unfit |= call_plane(get(job, _PLANE), src_at, dst_at, rows, cols, src_step, dst_step, scale, offset)
    return unfit
