"""The tables of a plan: chunks in the order in which they are read, and the places that each of them fills."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.boxes import BoxError, BoxRequest
from rankwise.data.store.files import FileFacts

__all__ = ["BoxPlan", "ChunkTable", "OddBox", "TargetTable"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTable:
    """The K different chunks of a plan, sorted by file and offset; those that were never written come last.

    Attributes:
        array: int64[K], index into the arrays of the request.
        number: int64[K], place of the chunk in its array's grid of chunks, in C order.
        coords: int64[K, ndim], the same as coordinates.
        file: int64[K], index into the files of the plan.
        offset: int64[K], first byte in the file; -1 for a chunk that was never written, less for one
            that cannot be found.
        length: int64[K], encoded bytes; -1 where only zarr-python knows.
    """

    array: IntArray
    number: IntArray
    coords: IntArray
    file: IntArray
    offset: IntArray
    length: IntArray

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.array)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetTable:
    """The T places that chunks fill: those of chunk k are ``bounds[k]:bounds[k + 1]``.

    Attributes:
        bounds: int64[K + 1].
        box: int64[T], the box.
        src_start: int64[T, ndim], first element inside the chunk.
        extent: int64[T, ndim], how many elements along each axis, at least 1.
        dst_start: int64[T], element of the flat output [B, *shape] where they go.
    """

    bounds: IntArray
    box: IntArray
    src_start: IntArray
    extent: IntArray
    dst_start: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OddBox:
    """A box that sticks out of its array and is made of a region inside it ("edge", "reflect").

    Attributes:
        box: its place in the request.
        plan: how the region is read, as a request of one box.
        picks: for each axis, int64[extent]: which element of the region comes at each place.
    """

    box: int
    plan: BoxPlan
    picks: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxPlan:
    """How one request is read; made by `BoxReader.plan`, read by the same reader.

    Attributes:
        request: what was asked.
        files: the files that it touches, in the order of first use.
        chunks: its different chunks.
        targets: what they fill.
        filled: bool[B], boxes that are filled with the fill value first, because they stick out of their array.
        odd: boxes that are made from another region.
        failed: boxes that cannot be read, known before reading.
        read_bytes: encoded bytes to read, as far as known without reading the data.
        decode_bytes: bytes to decode.
    """

    request: BoxRequest
    files: tuple[FileFacts, ...]
    chunks: ChunkTable
    targets: TargetTable
    filled: BoolArray
    odd: tuple[OddBox, ...]
    failed: tuple[BoxError, ...]
    read_bytes: int
    decode_bytes: int

    @property
    def num_chunks(self) -> int:
        """Different chunks that it touches."""
        return len(self.chunks) + sum(odd.plan.num_chunks for odd in self.odd)
