"""`ThreadsDecoder`: chunks with numcodecs and NumPy, where compiled code cannot be had."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.store.boxes.values import converted
from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.decoder import Scratch, check_run
from rankwise.data.store.decode.tasks import KIND_BLOSC, KIND_FILL, KIND_LZ4, KIND_RAW, KIND_ZSTD, ChunkTasks, memory_at
from rankwise.errors import DataError

__all__ = ["ThreadsDecoder"]

_SLACK = 2**16
_BLOSC_HEADER = np.dtype([("head", "<u4"), ("nbytes", "<u4"), ("block", "<u4"), ("cbytes", "<u4")])


class _ChunkError(Exception):
    def __init__(self, status: int, detail: int = 0) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


class ThreadsDecoder:
    """Runs chunks one after the other in the calling thread; decoders and large copies run without the lock.

    The same meaning as `KernelDecoder`, chunk by chunk and code by code, but that damage is always found: it decodes
    whole chunks. Every pair of dtypes that `converted` knows.

    Attributes:
        name: "threads".
    """

    name = "threads"

    def run(self, tasks: ChunkTasks, first: int, last: int, out: NDArray, scratch: Scratch) -> None:  # noqa: ARG002
        """Do the chunks from `first` to `last`; see `Decoder.run`."""
        check_run(tasks, first, last, out)
        flat = out.reshape(-1)
        for chunk in range(first, last):
            tasks.detail[chunk] = 0
            try:
                tasks.status[chunk] = _place(tasks, chunk, _elements(tasks, chunk), flat)
            except _ChunkError as error:
                tasks.status[chunk], tasks.detail[chunk] = error.status, error.detail


def _elements(tasks: ChunkTasks, chunk: int) -> NDArray:
    """Return the elements of a chunk, in its shape."""
    shape, dtype = tuple(tasks.chunk_shape[chunk].tolist()), tasks.fill.dtype
    size = int(np.prod(shape)) * dtype.itemsize
    if tasks.decoded[chunk]:
        return memory_at(int(tasks.decoded[chunk]), size).view(dtype).reshape(shape)
    if tasks.kind[chunk] == KIND_FILL:
        values: NDArray = np.broadcast_to(tasks.fill[chunk if len(tasks.fill) > 1 else 0], shape)
    else:
        values = np.frombuffer(_decoded(tasks, chunk, size), dtype=dtype).reshape(shape)
    if tasks.keep[chunk]:
        memory_at(int(tasks.keep[chunk]), size).view(dtype).reshape(shape)[...] = values
    return values


def _place(tasks: ChunkTasks, chunk: int, values: NDArray, flat: NDArray) -> int:
    status = codes.OK
    strides = tuple((tasks.dst_strides * flat.itemsize).tolist())
    for target in range(int(tasks.bounds[chunk]), int(tasks.bounds[chunk + 1])):
        begin, extent = tasks.src_start[target].tolist(), tasks.extent[target].tolist()
        region = values[tuple(slice(low, low + far) for low, far in zip(begin, extent, strict=True))]
        place = np.lib.stride_tricks.as_strided(flat[int(tasks.dst_start[target]) :], extent, strides)
        scaling: dict[str, Any] = {}
        if tasks.scale is not None and tasks.offset_ is not None:
            scaling = {"scale": float(tasks.scale[target]), "offset": float(tasks.offset_[target])}
        try:
            place[...] = converted(region, flat.dtype, **scaling)
        except DataError:
            tasks.unfit[target], status = True, codes.OUT_OF_RANGE
    return status


def _decoded(tasks: ChunkTasks, chunk: int, size: int) -> Any:
    """Return the decoded bytes of a chunk, exactly `size` of them."""
    kind, length = int(tasks.kind[chunk]), int(tasks.length[chunk])
    if kind not in (KIND_RAW, KIND_ZSTD, KIND_BLOSC, KIND_LZ4):
        raise _ChunkError(codes.UNKNOWN_KIND, kind)
    if kind == KIND_RAW and length != size:
        raise _ChunkError(codes.WRONG_LENGTH, size)
    if tasks.encoded[chunk]:
        frame: Any = memory_at(int(tasks.encoded[chunk]), length)
    elif not 0 <= length <= 2 * size + _SLACK:
        raise _ChunkError(codes.TOO_LONG, 2 * size + _SLACK)
    else:
        frame = _read(int(tasks.fd[chunk]), int(tasks.offset[chunk]), length)
    if kind == KIND_RAW:
        return frame
    if kind == KIND_BLOSC:
        _check_blosc(frame, size)
    elif kind == KIND_LZ4:
        _check_lz4(frame, size)
    else:
        _check_zstd(frame, size)
    return _whole(kind, frame, size)


def _whole(kind: int, frame: Any, size: int) -> Any:
    try:
        decoded = memoryview(_codec(kind).decode(frame)).cast("B")
    except MemoryError:
        raise
    except Exception as error:
        raise _ChunkError(codes.BAD_FRAME) from error
    if len(decoded) != size:
        raise _ChunkError(codes.WRONG_SIZE, len(decoded))
    return decoded


@functools.cache
def _codec(kind: int) -> Any:
    import numcodecs

    return {KIND_ZSTD: numcodecs.Zstd, KIND_BLOSC: numcodecs.Blosc, KIND_LZ4: numcodecs.LZ4}[kind]()


@functools.cache
def _known_compressors() -> int:
    from rankwise.data.store.decode.symbols import known_compressors

    return known_compressors()


def _check_blosc(frame: Any, size: int) -> None:
    """Check what a Blosc frame says of itself: numcodecs believes it."""
    if len(frame) < _BLOSC_HEADER.itemsize:
        raise _ChunkError(codes.BAD_FRAME)
    head, nbytes, _, cbytes = np.frombuffer(frame, dtype=_BLOSC_HEADER, count=1)[0].tolist()
    if cbytes != len(frame):
        raise _ChunkError(codes.WRONG_LENGTH, cbytes)
    compressor = (head >> 21) & 7
    if not (_known_compressors() >> compressor) & 1:
        raise _ChunkError(codes.UNKNOWN_COMPRESSOR, compressor)
    if nbytes != size:
        raise _ChunkError(codes.WRONG_SIZE, nbytes)


def _check_zstd(frame: Any, size: int) -> None:
    """Refuse a frame that claims more than a chunk (RFC 8878, 3.1.1.1): numcodecs would get the memory for it."""
    head = bytes(frame[:18])
    if len(head) < 5:
        raise _ChunkError(codes.BAD_FRAME)
    single_segment, flag = head[4] >> 5 & 1, head[4] >> 6
    begin = 5 + (not single_segment) + (0, 1, 2, 4)[head[4] & 3]
    width = (single_segment, 2, 4, 8)[flag]
    says = int.from_bytes(head[begin : begin + width], "little") + (256 if flag == 1 else 0)
    if says > size:
        raise _ChunkError(codes.WRONG_SIZE, min(says, 2**63 - 1))


def _check_lz4(frame: Any, size: int) -> None:
    if len(frame) <= 4:
        raise _ChunkError(codes.BAD_FRAME)
    says = int(np.frombuffer(frame, dtype="<i4", count=1)[0])
    if says != size:
        raise _ChunkError(codes.WRONG_SIZE, says)


def _read(fd: int, offset: int, length: int) -> bytes:
    """Read a range, in as many pieces as the system makes of it."""
    pieces: list[bytes] = []
    got = 0
    while got < length:
        try:
            piece = os.pread(fd, length - got, offset + got)
        except OSError as error:
            raise _ChunkError(codes.OS_ERROR, error.errno or 0) from error
        if not piece:
            raise _ChunkError(codes.CUT_SHORT, got)
        pieces.append(piece)
        got += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
