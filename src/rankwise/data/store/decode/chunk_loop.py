"""Compiled: the loop over chunks, which loads the elements of each and places them in the output, also in dense rows.

This module imports numba: import it late.
"""

from __future__ import annotations

import errno

from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.machine import (
    call_plane,
    ended,
    entry,
    external,
    get,
    inlined,
    memcpy,
    peek32,
    put,
    put8,
    put32,
    real_entry,
    streamed,
    types,
)
from rankwise.data.store.decode.symbols import PREFIX
from rankwise.data.store.decode.tasks import KIND_BLOSC, KIND_FILL, KIND_LZ4, KIND_RAW, KIND_ZSTD, SLOTS

_long, _int = types.int64, types.int32
_pread = external(f"{PREFIX}pread", _long, _int, _long, _long, _long)
_errno = external(f"{PREFIX}errno", _long)
_zstd = external(f"{PREFIX}ZSTD_decompressDCtx", _long, _long, _long, _long, _long, _long)
_lz4 = external(f"{PREFIX}LZ4_decompress_safe", _int, _long, _long, _int, _int)
_blosc_validate = external(f"{PREFIX}blosc_cbuffer_validate", _int, _long, _long, _long)
_blosc_getitem = external(f"{PREFIX}blosc_getitem", _int, _long, _int, _int, _long)
_blosc = external(f"{PREFIX}blosc_decompress_ctx", _int, _long, _long, _long, _int)

_OK, _CUT_SHORT, _OS_ERROR, _BAD_FRAME = codes.OK, codes.CUT_SHORT, codes.OS_ERROR, codes.BAD_FRAME
_WRONG_SIZE, _WRONG_LENGTH, _TOO_LONG = codes.WRONG_SIZE, codes.WRONG_LENGTH, codes.TOO_LONG
_UNKNOWN_COMPRESSOR, _UNKNOWN_KIND, _OUT_OF_RANGE = codes.UNKNOWN_COMPRESSOR, codes.UNKNOWN_KIND, codes.OUT_OF_RANGE
_EINTR = errno.EINTR
_ZSTD_NO_ROOM = -70  # zstd's error code if the decoded bytes exceed the buffer
_INT_MAX = 2**31 - 1

_FD, _OFFSET, _LENGTH, _ENCODED = SLOTS["fd"], SLOTS["offset"], SLOTS["length"], SLOTS["encoded"]
_DECODED, _KEEP, _KIND, _SIZE = SLOTS["decoded"], SLOTS["keep"], SLOTS["kind"], SLOTS["size"]
_LOW, _HIGH, _FILL_ROWS, _FILL_STEP = SLOTS["low"], SLOTS["high"], SLOTS["fill_rows"], SLOTS["fill_step"]
_READ_BUFFER, _READ_BYTES, _DECODE_BUFFER = SLOTS["read_buffer"], SLOTS["read_bytes"], SLOTS["decode_buffer"]
_CONTEXT, _COMPRESSORS, _NBYTES = SLOTS["context"], SLOTS["compressors"], SLOTS["blosc_bytes"]
_FIRST, _LAST, _BOUNDS, _STATUS = SLOTS["first"], SLOTS["last"], SLOTS["bounds"], SLOTS["status"]
_SOURCE, _STRIDED, _SRC_FIRST, _EXTENTS = SLOTS["source"], SLOTS["strided"], SLOTS["src_first"], SLOTS["extents"]
_DST_START, _DST_UNIT, _OUT, _UNFIT = SLOTS["dst_start"], SLOTS["dst_unit"], SLOTS["out"], SLOTS["unfit"]
_PLANE, _STAGE, _AXES, _COL_UNIT = SLOTS["plane"], SLOTS["stage"], SLOTS["axes"], SLOTS["col_unit"]
_STRIDES, _SRC_STRIDES, _SCALE, _PLUS = SLOTS["strides"], SLOTS["src_strides"], SLOTS["scale"], SLOTS["offset_"]
_SPREAD, _COLUMNS, _COLUMN_BYTES, _WIDTH = SLOTS["spread"], SLOTS["columns"], SLOTS["column_bytes"], SLOTS["width"]
_TABLES, _PLACES, _NUM_COLS, _MARKS = SLOTS["tables"], SLOTS["places"], SLOTS["num_cols"], SLOTS["marks"]
_ITS_PLACES, _ITS_NUM_COLS = SLOTS["its_places"], SLOTS["its_num_cols"]
_ROWS, _ROW_LENGTHS = SLOTS["rows"], SLOTS["row_lengths"]


@inlined
def _read(job: int, chunk: int, buffer: int, low: int, high: int) -> int:
    """Read bytes `low` to `high` of the encoded chunk into a buffer; the system may return them in several pieces."""
    fd, offset = types.int32(entry(job, _FD, chunk)), entry(job, _OFFSET, chunk)
    while low < high:
        got = _pread(fd, buffer, high - low, offset + low)
        if got > 0:
            low += got
            buffer += got
        elif got == 0:
            return ended(job, chunk, _CUT_SHORT, low)
        else:
            number = peek32(_errno())
            if number != _EINTR:
                return ended(job, chunk, _OS_ERROR, number)
    return _OK


@inlined
def _blosc_part(job: int, chunk: int, frame: int, target: int) -> int:
    """Decode a checked frame, or only the blocks that are needed; return the decoded bytes of a whole chunk."""
    size, low, high = entry(job, _SIZE, chunk), entry(job, _LOW, chunk), entry(job, _HIGH, chunk)
    item, block = (peek32(frame) >> 24) & 0xFF, peek32(frame + 8)
    start, end = low // item, (high + item - 1) // item
    touched = (high + block - 1) // block - low // block
    # A partial decode copies each block once more: it must save more than that
    if entry(job, _KEEP, chunk) != 0 or 4 * touched * block > 3 * size or end * item > size:
        whole: int = types.int64(_blosc(frame, target, size, types.int32(1)))
        return whole
    got = types.int64(_blosc_getitem(frame, types.int32(start), types.int32(end - start), target))
    put(job, _SOURCE, target - start * item)
    if got == (end - start) * item:
        return size
    return got if got < 0 else -1


@inlined
def _decode_blosc(job: int, chunk: int, frame: int, target: int) -> int:
    """Check the header of a Blosc frame, then decode it."""
    length = entry(job, _LENGTH, chunk)
    if length < 16:
        return ended(job, chunk, _BAD_FRAME, 0)
    if peek32(frame + 12) != length:
        return ended(job, chunk, _WRONG_LENGTH, peek32(frame + 12))
    compressor = (peek32(frame) >> 21) & 7
    if (get(job, _COMPRESSORS) >> compressor) & 1 == 0:
        return ended(job, chunk, _UNKNOWN_COMPRESSOR, compressor)
    if _blosc_validate(frame, length, job + _NBYTES) < 0:
        return ended(job, chunk, _BAD_FRAME, -1)
    got = get(job, _NBYTES)
    if got == entry(job, _SIZE, chunk):
        got = _blosc_part(job, chunk, frame, target)
    return _checked_status(job, chunk, got)


@inlined
def _decode_lz4(job: int, chunk: int, frame: int, target: int) -> int:
    """Decode an LZ4 block, which follows its decoded size."""
    size, length = entry(job, _SIZE, chunk), entry(job, _LENGTH, chunk)
    if length <= 4 or length > _INT_MAX:
        return ended(job, chunk, _BAD_FRAME, 0)
    got = peek32(frame)
    if got == size:
        got = types.int64(_lz4(frame + 4, target, types.int32(length - 4), types.int32(size)))
    return _checked_status(job, chunk, got)


@inlined
def _checked_status(job: int, chunk: int, got: int) -> int:
    """Return the status for a decoder's result: a number of bytes, or a negative error."""
    if got == entry(job, _SIZE, chunk):
        return _OK
    if got == _ZSTD_NO_ROOM:
        return ended(job, chunk, _WRONG_SIZE, -1)
    return ended(job, chunk, _BAD_FRAME if got < 0 else _WRONG_SIZE, got)


@inlined
def _decode(job: int, chunk: int, frame: int, target: int) -> int:
    kind = entry(job, _KIND, chunk)
    if kind == KIND_ZSTD:
        size, length = entry(job, _SIZE, chunk), entry(job, _LENGTH, chunk)
        return _checked_status(job, chunk, _zstd(get(job, _CONTEXT), target, size, frame, length))
    if kind == KIND_BLOSC:
        return _decode_blosc(job, chunk, frame, target)
    if kind == KIND_LZ4:
        return _decode_lz4(job, chunk, frame, target)
    return ended(job, chunk, _UNKNOWN_KIND, kind)


@inlined
def _load_chunk(job: int, chunk: int, target: int) -> int:
    """Load the encoded bytes of a chunk (of an uncompressed one only those needed), then decode them."""
    frame, length, buffer, low = entry(job, _ENCODED, chunk), entry(job, _LENGTH, chunk), get(job, _READ_BUFFER), 0
    raw, high, size = entry(job, _KIND, chunk) == KIND_RAW, length, entry(job, _SIZE, chunk)
    if raw:
        if length != size:
            return ended(job, chunk, _WRONG_LENGTH, size)
        buffer = target
        if entry(job, _KEEP, chunk) == 0:
            low, high = entry(job, _LOW, chunk), entry(job, _HIGH, chunk)
        put(job, _SOURCE, target - low)
    if frame == 0:
        room = get(job, _READ_BYTES)
        if not raw and (length < 0 or length > room):
            return ended(job, chunk, _TOO_LONG, room)
        status = _read(job, chunk, buffer, low, high)
        return status if raw or status != _OK else _decode(job, chunk, buffer, target)
    if raw:
        memcpy(target, frame + low, high - low)
        return _OK
    return _decode(job, chunk, frame, target)


@inlined
def _fetch(job: int, chunk: int) -> int:
    """Load a chunk's elements; return a status, and set `source` in the job (address of element 0)."""
    source, target = entry(job, _DECODED, chunk), entry(job, _KEEP, chunk)
    fills = entry(job, _KIND, chunk) == KIND_FILL and source == 0
    put(job, _STRIDED, 0 if fills else 1)
    if fills:
        source = get(job, _FILL_ROWS) + (chunk - get(job, _FIRST)) * get(job, _FILL_STEP)
    if target == 0:
        target = get(job, _DECODE_BUFFER)
    put(job, _SOURCE, source if source != 0 else target)
    status = ended(job, chunk, _OK, 0)
    return status if source != 0 else _load_chunk(job, chunk, target)


@inlined
def _spread(job: int, target: int) -> int:
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
        scale, offset = real_entry(job, _SCALE, target), real_entry(job, _PLUS, target)
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


def run_chunks(job: int) -> int:
    """Read, decode and place the chunks from `first` to `last` of a job; return 0."""
    for chunk in range(get(job, _FIRST), get(job, _LAST)):
        status = _fetch(job, chunk)
        if status == _OK:
            for target in range(entry(job, _BOUNDS, chunk), entry(job, _BOUNDS, chunk + 1)):
                unfit = _place(job, chunk, target) if get(job, _SPREAD) == 0 else _spread(job, target)
                if unfit != 0:
                    put8(job, _UNFIT, target, 1)
                    status = _OUT_OF_RANGE
        put32(job, _STATUS, chunk, status)
    streamed()
    return 0
