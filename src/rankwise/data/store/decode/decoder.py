"""`ThreadsDecoder`: reads, decodes and places chunks with numcodecs and NumPy, for systems without compiled code."""

from __future__ import annotations

import functools
import os
import struct
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.boxes import converted
from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.symbols import known_compressors
from rankwise.data.store.decode.tasks import ChunkTasks, address_of, memory_at
from rankwise.errors import DataError

_ALIGNMENT = 64
_STEP = 2**16


class Scratch:
    """Buffers of one thread: they grow to the largest chunk, are reused, and are freed at the end.

    Only one thread may use it at a time. Freed with the last reference.

    Attributes:
        read: uint8 buffer for encoded bytes.
        decode: uint8 buffer for one decoded chunk, small enough for the L2 cache if chunks are.
        job: int64 table for passing arguments to the compiled loop and results back.
        stage: uint8 buffer for a row of the output.
        blank: uint8 buffer for a dense row, all zero while none is being assembled.
        rows: rows of fill values, of any dtype.
        context: address of a decoder's own memory (of zstd), 0 until needed.
    """

    def __init__(self) -> None:
        self.read: NDArray = _aligned(0)
        self.decode: NDArray = _aligned(0)
        self.stage: NDArray = _aligned(0)
        self.blank: NDArray = _aligned(0)
        self.job: IntArray = np.zeros(codes.NUM_SLOTS, dtype=np.int64)
        self.rows: NDArray = _aligned(0)
        self.context = 0

    def reserve(self, **num_bytes: int) -> None:
        """Grow buffers, given by their names, to at least these sizes; new memory of `blank` is zero."""
        for name, size in num_bytes.items():
            if len(getattr(self, name)) < size:
                setattr(self, name, _aligned(size))
                if name == "blank":
                    self.blank[:] = 0

    def ensure_context(self, make: Callable[[], int], free: Callable[[int], object]) -> None:
        """Create the decoder's context if it does not exist.

        Raises:
            MemoryError: it cannot be created.
        """
        if self.context:
            return
        self.context = make()
        if not self.context:
            raise MemoryError("no memory for the context of a decoder")
        weakref.finalize(
            self, free, self.context
        ).atexit = False  # at interpreter exit a thread may still be decoding with it


def _aligned(num_bytes: int) -> NDArray:
    """Return an uninitialised buffer aligned to a cache line; other buffers make unshuffling fall back to a copy."""
    whole = -(-num_bytes // _STEP) * _STEP
    block: NDArray = np.empty(whole + _ALIGNMENT, dtype=np.uint8)
    skip = -address_of(block) % _ALIGNMENT
    return block[skip : skip + whole]


def check_run(tasks: ChunkTasks, first: int, last: int, out: NDArray) -> None:
    """Refuse a run with chunks or output places that do not exist."""
    if not (0 <= first <= last <= len(tasks)):
        raise ValueError(f"chunks {first} to {last} of {len(tasks)}")
    if not (out.flags.c_contiguous and out.flags.writeable) or tasks.reach >= out.size:
        raise ValueError(
            f"targets reach element {tasks.reach} of an output of {out.size}, which must be C-contiguous and writeable"
        )


_SLACK = 2**16
_BLOSC_HEADER = struct.Struct("<4I")  # flags, decoded bytes, bytes of a block, encoded bytes


class _ChunkError(Exception):
    def __init__(self, status: int, detail: int = 0) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


class ThreadsDecoder:
    """Processes chunks one by one in the calling thread; decoders and large copies release the interpreter's lock.

    The same results as `KernelDecoder`, with the same status codes, except that it always detects damage, because it
    decodes whole chunks. Supports every pair of dtypes that `converted` supports.
    """

    name = "threads"

    def run(self, tasks: ChunkTasks, first: int, last: int, out: NDArray, scratch: Scratch) -> None:  # noqa: ARG002
        """Process the chunks from `first` to `last` (exclusive), and write the result of each to ``tasks.status``.

        Args:
            tasks: the work; several threads may process different chunks of it.
            first: first chunk.
            last: end of the chunks (exclusive).
            out: the output, C-contiguous and writeable.
            scratch: memory of the calling thread.

        Raises:
            ValueError: chunks or targets do not exist: a bug in the planner, not damage.
        """
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
    if tasks.kind[chunk] == codes.KIND_FILL:
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
    if kind not in (codes.KIND_RAW, codes.KIND_ZSTD, codes.KIND_BLOSC, codes.KIND_LZ4):
        raise _ChunkError(codes.UNKNOWN_KIND, kind)
    if kind == codes.KIND_RAW and length != size:
        raise _ChunkError(codes.WRONG_LENGTH, size)
    if tasks.encoded[chunk]:
        frame: Any = memory_at(int(tasks.encoded[chunk]), length)
    elif not 0 <= length <= 2 * size + _SLACK:
        raise _ChunkError(codes.TOO_LONG, 2 * size + _SLACK)
    else:
        frame = _read(int(tasks.fd[chunk]), int(tasks.offset[chunk]), length)
    if kind == codes.KIND_RAW:
        return frame
    if kind == codes.KIND_BLOSC:
        _check_blosc(frame, size)
    elif kind == codes.KIND_LZ4:
        if length <= 4:
            raise _ChunkError(codes.BAD_FRAME)
        says = int.from_bytes(bytes(frame[:4]), "little", signed=True)
        if says != size:
            raise _ChunkError(codes.WRONG_SIZE, says)
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

    return {codes.KIND_ZSTD: numcodecs.Zstd, codes.KIND_BLOSC: numcodecs.Blosc, codes.KIND_LZ4: numcodecs.LZ4}[kind]()


def _check_blosc(frame: Any, size: int) -> None:
    """Check the header of a Blosc frame: numcodecs trusts it."""
    if len(frame) < _BLOSC_HEADER.size:
        raise _ChunkError(codes.BAD_FRAME)
    head, nbytes, _, cbytes = _BLOSC_HEADER.unpack_from(frame)
    if cbytes != len(frame):
        raise _ChunkError(codes.WRONG_LENGTH, cbytes)
    compressor = (head >> 21) & 7
    if not (known_compressors() >> compressor) & 1:
        raise _ChunkError(codes.UNKNOWN_COMPRESSOR, compressor)
    if nbytes != size:
        raise _ChunkError(codes.WRONG_SIZE, nbytes)


def _check_zstd(frame: Any, size: int) -> None:
    """Refuse a frame that claims more bytes than a chunk (RFC 8878, 3.1.1.1): numcodecs would allocate them."""
    head = bytes(frame[:18])
    if len(head) < 5:
        raise _ChunkError(codes.BAD_FRAME)
    single_segment, flag = head[4] >> 5 & 1, head[4] >> 6
    begin = 5 + (not single_segment) + (0, 1, 2, 4)[head[4] & 3]
    width = (single_segment, 2, 4, 8)[flag]
    says = int.from_bytes(head[begin : begin + width], "little") + (256 if flag == 1 else 0)
    if says > size:
        raise _ChunkError(codes.WRONG_SIZE, min(says, 2**63 - 1))


def _read(fd: int, offset: int, length: int) -> bytes:
    """Read a range; the system may return it in several pieces."""
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
