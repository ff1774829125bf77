"""Compiled: the loop over chunks, which places their elements in the output, also in dense rows.

This module imports numba: import it late.
"""

from __future__ import annotations

from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.fetching import fetch, memcpy
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
_PLANE, _STAGE, _ELEMENTS = SLOTS["plane"], SLOTS["stage"], SLOTS["elements"]
_SPREAD, _COLUMNS, _COLUMN_BYTES, _WIDTH = SLOTS["spread"], SLOTS["columns"], SLOTS["column_bytes"], SLOTS["width"]
_TABLES, _PLACES, _NUM_COLS = SLOTS["tables"], SLOTS["places"], SLOTS["num_cols"]
_ITS_PLACES, _ITS_NUM_COLS = SLOTS["its_places"], SLOTS["its_num_cols"]
_ROWS, _ROW_LENGTHS, _MARKS, _NAMED = SLOTS["rows"], SLOTS["row_lengths"], SLOTS["marks"], SLOTS["named"]
_FIRST, _AXES, _STRIDES, _SRC_STRIDES = SLOTS["first"], SLOTS["axes"], SLOTS["strides"], SLOTS["src_strides"]
_SCALE, _OFFSET, _COL_UNIT, _STREAM = SLOTS["scale"], SLOTS["offset_"], SLOTS["col_unit"], SLOTS["stream"]


@inlined
def fetch_columns(job: int, chunk: int) -> int:
    """Load the chunk of columns that belongs to a chunk of elements, if both are decoded together; return a status."""
    named = get(job, _NAMED) if get(job, _SPREAD) != 0 else 0
    if named == 0:
        return _OK
    status = fetch(named, chunk)
    put32(named, _STATUS, chunk, status)
    return status


@inlined
def _cast(job: int, target: int, count: int) -> int:
    """Set the address of a target's elements, cast if necessary; return whether a value does not fit."""
    src, unfit = get(job, _SOURCE) + entry(job, _SRC_FIRST, target) * get(job, _STRIDED), 0
    if get(job, _PLANE) != 0:
        unfit = call_plane(get(job, _PLANE), src, get(job, _STAGE), 1, count, 0, 0, 1.0, 0.0)
        src = get(job, _STAGE)
    put(job, _ELEMENTS, src)
    return unfit


@inlined
def _columns(job: int, chunk: int, target: int, count: int) -> int:
    """Return the address of a target's columns."""
    named = get(job, _NAMED)
    if named == 0:
        return get(job, _COLUMNS) + entry(job, _DST_START, target) * get(job, _COLUMN_BYTES)
    if _cast(named, target, count) != 0:
        put8(named, _UNFIT, target, 1)
        put32(named, _STATUS, chunk, _OUT_OF_RANGE)
    return get(named, _ELEMENTS)


@inlined
def spread(job: int, chunk: int, target: int) -> int:
    """Write elements to their dense row, cast first if necessary; return whether a value does not fit."""
    row, count, table = entry(job, _ROWS, target), entry(job, _EXTENTS, target), entry(job, _TABLES, target)
    whole = 1 if entry(job, _ROW_LENGTHS, target) == count else 0
    put(job, _ITS_PLACES, entry(job, _PLACES, table))
    put(job, _ITS_NUM_COLS, entry(job, _NUM_COLS, table))
    unfit, columns, named = _cast(job, target, count), _columns(job, chunk, target, count), get(job, _NAMED)
    row = get(job, _OUT) + row * get(job, _WIDTH) * get(job, _DST_UNIT)
    mark = call_plane(get(job, _SPREAD), get(job, _ELEMENTS), row, columns, count, whole, job, 0.0, 0.0)
    if named != 0 and (mark != 0 or whole == 0 or get(named, _STRIDED) == 0):  # these are checked afterwards
        size = get(job, _COLUMN_BYTES)
        memcpy(get(job, _COLUMNS) + entry(job, _DST_START, target) * size, columns, count * size)
    put8(job, _MARKS, target, mark)
    return unfit


def run_chunks(job: int) -> int:
    """Read, decode and place the chunks from `first` to `last` of a job; return 0."""
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
        if get(job, _STREAM) == 0:
            unfit |= call_plane(get(job, _PLANE), src_at, dst_at, rows, cols, src_step, dst_step, scale, offset)
        else:
            unfit |= _staged(job, src_at, dst_at, rows, cols, src_step, dst_step, scale, offset)
    return unfit


@inlined
def _staged(  # noqa: PLR0917
    job: int, src: int, dst: int, rows: int, cols: int, src_step: int, dst_step: int, scale: float, offset: float
) -> int:
    """Cast row by row into memory that stays in the caches, then write from there past them."""
    stage, unit, unfit = get(job, _STAGE), get(job, _DST_UNIT), 0
    for row in range(rows):
        unfit |= call_plane(get(job, _PLANE), src + row * src_step, stage, 1, cols, 0, 0, scale, offset)
        call_plane(get(job, _STREAM), stage, dst + row * dst_step, 1, cols * unit, 0, 0, 1.0, 0.0)
    return unfit
