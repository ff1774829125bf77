"""Compiled: get the elements of one chunk into memory, whatever its bytes are.

Reads into one buffer, decodes into another (or into the one to keep), and leaves in the job where the elements begin.
No byte is read from or written to outside buffers: every length is checked before, and the decoders are told the
sizes of both of theirs. This module imports numba: import it late.
"""

from __future__ import annotations

import errno

from rankwise.data.store.decode import status as codes
from rankwise.data.store.decode.job import SLOTS
from rankwise.data.store.decode.machine import entry, external, inlined, peek, peek32, poke, types
from rankwise.data.store.decode.symbols import PREFIX
from rankwise.data.store.decode.tasks import KIND_BLOSC, KIND_FILL, KIND_LZ4, KIND_RAW, KIND_ZSTD

__all__ = ["fetch"]

_long, _int = types.int64, types.int32
_pread = external(f"{PREFIX}pread", _long, _int, _long, _long, _long)
_errno = external(f"{PREFIX}errno", _long)
_memcpy = external(f"{PREFIX}memcpy", _long, _long, _long, _long)
_zstd = external(f"{PREFIX}ZSTD_decompressDCtx", _long, _long, _long, _long, _long, _long)
_lz4 = external(f"{PREFIX}LZ4_decompress_safe", _int, _long, _long, _int, _int)
_blosc_validate = external(f"{PREFIX}blosc_cbuffer_validate", _int, _long, _long, _long)
_blosc_getitem = external(f"{PREFIX}blosc_getitem", _int, _long, _int, _int, _long)
_blosc = external(f"{PREFIX}blosc_decompress_ctx", _int, _long, _long, _long, _int)

_OK, _CUT_SHORT, _OS_ERROR, _BAD_FRAME = codes.OK, codes.CUT_SHORT, codes.OS_ERROR, codes.BAD_FRAME
_WRONG_SIZE, _WRONG_LENGTH, _TOO_LONG = codes.WRONG_SIZE, codes.WRONG_LENGTH, codes.TOO_LONG
_UNKNOWN_COMPRESSOR, _UNKNOWN_KIND = codes.UNKNOWN_COMPRESSOR, codes.UNKNOWN_KIND
_EINTR = errno.EINTR
_ZSTD_TOO_SMALL = -70  # what zstd returns where the decoded bytes are more than there is room for
_BLOSC_HEADER, _LZ4_HEADER = 16, 4

_FD, _OFFSET, _LENGTH = SLOTS["fd"], SLOTS["offset"], SLOTS["length"]
_ENCODED, _DECODED, _KEEP, _KIND = SLOTS["encoded"], SLOTS["decoded"], SLOTS["keep"], SLOTS["kind"]
_FILL, _FILL_STEP, _SHAPE, _BOUNDS = SLOTS["fill"], SLOTS["fill_step"], SLOTS["chunk_shape"], SLOTS["bounds"]
_START, _EXTENT, _DETAIL, _AXES = SLOTS["src_start"], SLOTS["extent"], SLOTS["detail"], SLOTS["axes"]
_UNIT, _READ_BUFFER, _READ_BYTES = SLOTS["src_unit"], SLOTS["read_buffer"], SLOTS["read_bytes"]
_DECODE_BUFFER, _CONTEXT, _COMPRESSORS = SLOTS["decode_buffer"], SLOTS["context"], SLOTS["compressors"]
_SIZE, _LOW, _HIGH, _TARGET, _SOURCE = (SLOTS[name] for name in ("size", "low", "high", "target", "source"))
_STRIDED, _FRAME, _FRAME_BYTES, _NBYTES = (SLOTS[n] for n in ("strided", "frame", "frame_bytes", "blosc_bytes"))


@inlined
def _start_chunk(job: int, chunk: int) -> int:
    axes, size = peek(job + _AXES), peek(job + _UNIT)
    for axis in range(axes):
        size *= entry(job, _SHAPE, chunk * axes + axis)
    keep = entry(job, _KEEP, chunk)
    target = keep if keep != 0 else peek(job + _DECODE_BUFFER)
    poke(job + _SIZE, size)
    poke(job + _TARGET, target)
    poke(job + _SOURCE, target)
    poke(job + _STRIDED, 1)
    poke(peek(job + _DETAIL) + 8 * chunk, 0)
    return _OK


@inlined
def _fail(job: int, chunk: int, status: int, detail: int) -> int:
    poke(peek(job + _DETAIL) + 8 * chunk, detail)
    return status


@inlined
def _fill(job: int, chunk: int) -> int:
    """Write the fill value: over the whole chunk to keep, else over one row that is taken again and again."""
    axes, unit = peek(job + _AXES), peek(job + _UNIT)
    target, size = peek(job + _TARGET), peek(job + _SIZE)
    if entry(job, _KEEP, chunk) == 0:
        size = unit * entry(job, _SHAPE, chunk * axes + axes - 1)
        poke(job + _STRIDED, 0)
    _memcpy(target, peek(job + _FILL) + chunk * peek(job + _FILL_STEP), unit)
    done = unit
    while done < size:
        more = min(done, size - done)
        _memcpy(target + done, target, more)
        done += more
    return _OK


@inlined
def _find_needed(job: int, chunk: int) -> int:
    """Find the range of a chunk's bytes from the first to the last that any target takes: all if it is kept."""
    low, high, unit, axes = peek(job + _SIZE), 0, peek(job + _UNIT), peek(job + _AXES)
    if entry(job, _KEEP, chunk) != 0:
        low, high = 0, low
    for target in range(entry(job, _BOUNDS, chunk), entry(job, _BOUNDS, chunk + 1)):
        first, last = 0, 0
        for axis in range(axes):
            size = entry(job, _SHAPE, chunk * axes + axis)
            start = entry(job, _START, target * axes + axis)
            first = first * size + start
            last = last * size + start + entry(job, _EXTENT, target * axes + axis) - 1
        low, high = min(low, first * unit), max(high, (last + 1) * unit)
    poke(job + _LOW, min(low, high))
    poke(job + _HIGH, high)
    return _OK


@inlined
def _raw(job: int, chunk: int) -> int:
    """Read the part of an uncompressed chunk that is needed, or take it where it lies."""
    size, target, unit = peek(job + _SIZE), peek(job + _TARGET), peek(job + _UNIT)
    if entry(job, _LENGTH, chunk) != size:
        return _fail(job, chunk, _WRONG_LENGTH, size)
    _find_needed(job, chunk)
    low, high, encoded = peek(job + _LOW), peek(job + _HIGH), entry(job, _ENCODED, chunk)
    if encoded == 0:
        poke(job + _SOURCE, target - low)
        return _read(job, chunk, target, low, high)
    if entry(job, _KEEP, chunk) == 0 and encoded % unit == 0:
        poke(job + _SOURCE, encoded)
        return _OK
    _memcpy(target, encoded + low, high - low)
    poke(job + _SOURCE, target - low)
    return _OK


@inlined
def _frame(job: int, chunk: int) -> int:
    """Have the encoded bytes in memory: leaves `frame` and `frame_bytes` in the job."""
    length, encoded = entry(job, _LENGTH, chunk), entry(job, _ENCODED, chunk)
    poke(job + _FRAME_BYTES, length)
    poke(job + _FRAME, encoded)
    if encoded != 0:
        return _OK
    if length > peek(job + _READ_BYTES) or length < 0:
        return _fail(job, chunk, _TOO_LONG, peek(job + _READ_BYTES))
    poke(job + _FRAME, peek(job + _READ_BUFFER))
    return _read(job, chunk, peek(job + _READ_BUFFER), 0, length)


@inlined
def _read(job: int, chunk: int, buffer: int, low: int, high: int) -> int:
    """Read bytes `low` to `high` of the encoded chunk into a buffer, in as many pieces as the system makes of it."""
    fd, offset = entry(job, _FD, chunk), entry(job, _OFFSET, chunk)
    at = low
    while at < high:
        got = _pread(types.int32(fd), buffer + at - low, high - at, offset + at)
        if got == 0:
            return _fail(job, chunk, _CUT_SHORT, at)
        if got > 0:
            at += got
            continue
        number = peek32(_errno())
        if number != _EINTR:
            return _fail(job, chunk, _OS_ERROR, number)
    return _OK


@inlined
def _decode_zstd(job: int, chunk: int) -> int:
    size = peek(job + _SIZE)
    got = _zstd(peek(job + _CONTEXT), peek(job + _TARGET), size, peek(job + _FRAME), peek(job + _FRAME_BYTES))
    if got == _ZSTD_TOO_SMALL:
        return _fail(job, chunk, _WRONG_SIZE, -1)
    if got < 0:
        return _fail(job, chunk, _BAD_FRAME, got)
    return _OK if got == size else _fail(job, chunk, _WRONG_SIZE, got)


@inlined
def _decode_lz4(job: int, chunk: int) -> int:
    size, frame, length = peek(job + _SIZE), peek(job + _FRAME), peek(job + _FRAME_BYTES)
    if length <= _LZ4_HEADER or length > 2**31 - 1:
        return _fail(job, chunk, _BAD_FRAME, 0)
    if peek32(frame) != size:
        return _fail(job, chunk, _WRONG_SIZE, peek32(frame))
    packed, room = types.int32(length - _LZ4_HEADER), types.int32(size)
    got = types.int64(_lz4(frame + _LZ4_HEADER, peek(job + _TARGET), packed, room))
    if got < 0:
        return _fail(job, chunk, _BAD_FRAME, got)
    return _OK if got == size else _fail(job, chunk, _WRONG_SIZE, got)


@inlined
def _decode_blosc(job: int, chunk: int) -> int:
    frame, length = peek(job + _FRAME), peek(job + _FRAME_BYTES)
    status = _check_blosc(job, chunk, frame, length)
    if status != _OK:
        return status
    size, target, word = peek(job + _SIZE), peek(job + _TARGET), peek32(frame)
    item = (word >> 24) & 0xFF
    _find_needed(job, chunk)
    start, end = peek(job + _LOW) // item, (peek(job + _HIGH) + item - 1) // item
    if _partial_pays(peek(job + _LOW), peek(job + _HIGH), peek32(frame + 8), size) and end * item <= size:
        got = types.int64(_blosc_getitem(frame, types.int32(start), types.int32(end - start), target))
        poke(job + _SOURCE, target - start * item)
        return _OK if got == (end - start) * item else _fail(job, chunk, _BAD_FRAME, got)
    got = types.int64(_blosc(frame, target, size, types.int32(1)))
    return _OK if got == size else _fail(job, chunk, _BAD_FRAME, got)


@inlined
def _partial_pays(low: int, high: int, block: int, size: int) -> bool:
    """Whether so few blocks are touched that it makes up for the copy that a partial decode makes of each."""
    touched = (high + block - 1) // block - low // block
    return 4 * touched * block <= 3 * size


@inlined
def _check_blosc(job: int, chunk: int, frame: int, length: int) -> int:
    """Check what a Blosc frame says of itself before anybody believes it."""
    if length < _BLOSC_HEADER:
        return _fail(job, chunk, _BAD_FRAME, 0)
    if peek32(frame + 12) != length:
        return _fail(job, chunk, _WRONG_LENGTH, peek32(frame + 12))
    compressor = (peek32(frame) >> 21) & 7
    if (peek(job + _COMPRESSORS) >> compressor) & 1 == 0:
        return _fail(job, chunk, _UNKNOWN_COMPRESSOR, compressor)
    got = types.int64(_blosc_validate(frame, length, job + _NBYTES))
    if got < 0:
        return _fail(job, chunk, _BAD_FRAME, got)
    nbytes = peek(job + _NBYTES)
    return _OK if nbytes == peek(job + _SIZE) else _fail(job, chunk, _WRONG_SIZE, nbytes)


@inlined
def fetch(job: int, chunk: int) -> int:
    """Get a chunk's elements; returns a status, and in the job `source` (where element 0 is, or would be)."""
    _start_chunk(job, chunk)
    decoded, kind = entry(job, _DECODED, chunk), entry(job, _KIND, chunk)
    if decoded != 0:
        poke(job + _SOURCE, decoded)
        return _OK
    if kind == KIND_FILL:
        return _fill(job, chunk)
    if kind == KIND_RAW:
        return _raw(job, chunk)
    if kind < KIND_ZSTD or kind > KIND_LZ4:
        return _fail(job, chunk, _UNKNOWN_KIND, kind)
    status = _frame(job, chunk)
    if status == _OK:
        status = _decode(job, chunk, kind)
    return status


@inlined
def _decode(job: int, chunk: int, kind: int) -> int:
    if kind == KIND_ZSTD:
        return _decode_zstd(job, chunk)
    if kind == KIND_BLOSC:
        return _decode_blosc(job, chunk)
    return _decode_lz4(job, chunk)
