"""`make_plan`: turns a request for boxes into a `BoxPlan`: chunks in files, and the places that they fill."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.boxes import BoxError, BoxRequest
from rankwise.data.store.files.facts import FactsCache, FileFacts
from rankwise.data.store.plan.grids import Pieces, any_axis, distinct, expand, grid_of, of_arrays, ravel
from rankwise.data.store.shard import MISSING, OUTSIDE
from rankwise.errors import DataError

_COUNTED = 2**16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTable:
    """The K distinct chunks of a plan, sorted by file and offset; chunks that were never written come last.

    Attributes:
        array: int64[K], index into the arrays of the request.
        number: int64[K], index of the chunk in its array's grid of chunks, in C order.
        coords: int64[K, ndim], the same as coordinates.
        file: int64[K], index into the files of the plan.
        offset: int64[K], first byte in the file; `MISSING` for a chunk that was never written, `OUTSIDE` for one
            that cannot be located.
        length: int64[K], encoded bytes; -1 if only zarr-python knows, 0 for missing chunks.
    """

    array: IntArray
    number: IntArray
    coords: IntArray
    file: IntArray
    offset: IntArray
    length: IntArray

    def __len__(self) -> int:
        return len(self.array)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetTable:
    """The T places that chunks fill: chunk k fills places ``bounds[k]:bounds[k + 1]``.

    Attributes:
        bounds: int64[K + 1].
        box: int64[T], the box.
        src_start: int64[T, ndim], first element inside the chunk.
        extent: int64[T, ndim], number of elements along each axis, at least 1.
        dst_start: int64[T], first element in the flat output [B, *shape].
    """

    bounds: IntArray
    box: IntArray
    src_start: IntArray
    extent: IntArray
    dst_start: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBox:
    """A box that extends beyond its array and is made from a region inside it ("edge", "reflect").

    Attributes:
        box: its place in the request.
        plan: the plan for the region, as a request of one box.
        picks: for each axis, int64[extent]: the element of the region for each place.
    """

    box: int
    plan: BoxPlan
    picks: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxPlan:
    """The plan for one request; made by `BoxReader.plan`, read by the same reader.

    Attributes:
        request: the request.
        files: the files that it needs, in the order of first use.
        chunks: its distinct chunks.
        targets: the places that they fill.
        filled: bool[B], boxes to initialise with the fill value, because they extend beyond their array.
        padded: boxes that are made from another region.
    """

    request: BoxRequest
    files: tuple[FileFacts, ...]
    chunks: ChunkTable
    targets: TargetTable
    filled: BoolArray
    padded: tuple[PaddedBox, ...] = ()

    @property
    def num_chunks(self) -> int:
        """Number of distinct chunks that it needs."""
        return len(self.chunks) + sum(padded.plan.num_chunks for padded in self.padded)

    @property
    def read_bytes(self) -> int:
        """Encoded bytes to read, as far as known without reading the data."""
        return int(np.maximum(self.chunks.length, 0).sum())

    @property
    def decode_bytes(self) -> int:
        """Bytes to decode."""
        sizes = np.array([meta.chunk_bytes for meta in self.request.arrays], dtype=np.int64)
        return int(sizes[self.chunks.array[self.chunks.offset >= 0]].sum())

    @property
    def failed(self) -> dict[int, BoxError]:
        """Errors that are known before reading, by box: those of chunks that could not be located."""
        failed: dict[int, BoxError] = {}
        for chunk in np.flatnonzero(self.chunks.offset == OUTSIDE).tolist():
            facts = self.files[int(self.chunks.file[chunk])]
            error, damage = _failure(facts)
            for box in self.targets.box[self.targets.bounds[chunk] : self.targets.bounds[chunk + 1]].tolist():
                failed.setdefault(box, BoxError(box=box, place=facts.path, error=error, damage=damage))
        return failed


def _failure(facts: FileFacts) -> tuple[DataError, bool]:
    """Return why chunks of a file cannot be located, and whether its content is damaged."""
    if isinstance(facts.error, DataError):
        return facts.error, getattr(facts.error, "damage", True)
    if facts.error is not None:
        return DataError(f"cannot read the status of the file {facts.path}: {facts.error}"), False
    what = f"the index of {facts.path} refers to bytes beyond the end of the file: it was truncated"
    return DataError(f"{what}; copy or write it again"), True


def make_plan(request: BoxRequest, facts_cache: FactsCache, *, like: BoxPlan | None = None) -> BoxPlan:
    """Return the plan for a request. Reads facts of files and shard indexes, not data.

    Args:
        request: the request.
        facts_cache: facts about files.
        like: a plan for the same boxes of other arrays: if the chunk grids are equal, only the locations of
            chunks in files are looked up.
    """
    if like is not None and _same_boxes(request, like):
        files, chunks, position = _located(
            request, like.chunks.array, like.chunks.number, like.chunks.coords, facts_cache
        )
        if (np.diff(position) == 1).all():  # else the chunks have another order in these files
            return replace(like, request=request, files=files, chunks=chunks)
    low, high = request.starts, request.starts + request.extents
    outside = padded = np.zeros(len(request), dtype=np.bool_)
    if request.pad is not None:  # else the request has refused boxes that extend beyond their array
        shapes = of_arrays([array.shape for array in request.arrays], request.which, low.shape[1])
        outside = any_axis((low < 0) | (high > shapes))
        low, high = np.clip(low, 0, shapes), np.clip(high, 0, shapes)
    if request.pad in ("edge", "reflect"):
        padded = outside
        high[padded] = low[padded]  # a padded box has no pieces of its own
    pieces = expand(low, high, of_arrays([array.chunks for array in request.arrays], request.which, low.shape[1]))
    grids = [grid_of(array.shape, array.chunks) for array in request.arrays]
    number, first, inverse = distinct(request.which[pieces.box], pieces.coords, grids)
    array = request.which[pieces.box[first]]
    files, chunks, position = _located(request, array, number[first], pieces.coords[first], facts_cache)
    targets = _targets(request, pieces, position[inverse], len(chunks))
    odd = tuple([_odd_box(request, box, facts_cache) for box in np.flatnonzero(padded).tolist()])
    return BoxPlan(request=request, files=files, chunks=chunks, targets=targets, filled=outside & ~padded, padded=odd)


def _same_boxes(request: BoxRequest, like: BoxPlan) -> bool:
    """Whether boxes are identical, and cut by the same grids."""
    other = like.request
    same = request.which is other.which and request.starts is other.starts and request.runs is other.runs
    if not same or request.shape != other.shape or request.pad is not None or other.pad is not None:
        return False
    return [(a.shape, a.chunks) for a in request.arrays] == [(a.shape, a.chunks) for a in other.arrays]


def _located(
    request: BoxRequest, array: IntArray, number: IntArray, coords: IntArray, facts_cache: FactsCache
) -> tuple[tuple[FileFacts, ...], ChunkTable, IntArray]:
    """Return the files of K distinct chunks, the chunks sorted by their place there, and where each is sorted to.

    Args:
        request: the request.
        array: int64[K], see `ChunkTable`.
        number: int64[K].
        coords: int64[K, ndim].
        facts_cache: facts about files.
    """
    arrays, ndim = request.arrays, coords.shape[1]
    per_file = of_arrays([grid_of(meta.files, meta.chunks) for meta in arrays], array, ndim)
    file_coords, inside = np.divmod(coords, per_file)
    file_number, first, file = distinct(array, file_coords, [grid_of(meta.shape, meta.files) for meta in arrays])
    files = facts_cache.lookup(arrays, array[first], file_number[first], file_coords[first])
    # a chunk that is a whole file; behind a URL only the store knows its size
    whole = np.array([not meta.is_remote and meta.files == meta.chunks for meta in arrays], dtype=np.bool_)
    size = np.array([facts.size for facts in files], dtype=np.int64)
    exists = np.array([facts.exists for facts in files], dtype=np.bool_)
    offset = np.where(exists, 0, MISSING)[file]
    length = np.where(exists, np.where(whole[array[first]], size, -1), 0)[file]
    entry, by_file = ravel(inside, per_file), np.argsort(file, kind="stable")
    bounds = np.searchsorted(file[by_file], np.arange(len(files) + 1)).tolist()
    for at, facts in enumerate(files):
        members = by_file[bounds[at] : bounds[at + 1]]
        if facts.error is not None:
            offset[members], length[members] = OUTSIDE, 0
        elif facts.index is not None:
            offset[members], length[members] = facts.index[entry[members]].T
    order = np.lexsort((offset, file, offset < 0))
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    chunks = ChunkTable(
        array=array[order],
        number=number[order],
        coords=coords[order],
        file=file[order],
        offset=offset[order],
        length=length[order],
    )
    return files, chunks, position


def _targets(request: BoxRequest, pieces: Pieces, chunk: IntArray, num_chunks: int) -> TargetTable:
    # NumPy sorts 16 bits by radix sort
    by_chunk = np.argsort(chunk.astype(np.uint16) if num_chunks <= _COUNTED else chunk, kind="stable")
    strides = np.cumprod((1, *request.shape[:0:-1]), dtype=np.int64)[::-1]
    inside = pieces.begin - request.starts.take(pieces.box, axis=0)
    at = (pieces.box if request.runs is None else request.runs.places.take(pieces.box)) * math.prod(request.shape)
    for axis, stride in enumerate(strides.tolist()):  # NumPy multiplies matrices of integers slowly
        at += inside[:, axis] * stride
    bounds = np.zeros(num_chunks + 1, dtype=np.int64)
    np.cumsum(np.bincount(chunk, minlength=num_chunks), out=bounds[1:])
    return TargetTable(
        bounds=bounds,
        box=pieces.box.take(by_chunk),
        src_start=pieces.src_start.take(by_chunk, axis=0),
        extent=pieces.extent.take(by_chunk, axis=0),
        dst_start=at.take(by_chunk),
    )


def _odd_box(request: BoxRequest, box: int, facts_cache: FactsCache) -> PaddedBox:
    which = int(request.which[box])
    picked = [
        _inside(np.arange(start, start + extent), size, request.pad)
        for start, extent, size in zip(
            request.starts[box].tolist(), request.shape, request.arrays[which].shape, strict=True
        )
    ]
    low = np.array([axis.min() for axis in picked], dtype=np.int64)
    region = replace(
        request,
        arrays=(request.arrays[which],),
        which=np.zeros(1, dtype=np.int64),
        starts=low[None],
        shape=tuple(int(axis.max()) - int(axis.min()) + 1 for axis in picked),
        pad=None,
        scale=None if request.scale is None else request.scale[which : which + 1],
        offset=None if request.offset is None else request.offset[which : which + 1],
    )
    picks = tuple(axis - first for axis, first in zip(picked, low, strict=True))
    return PaddedBox(box=box, plan=make_plan(region, facts_cache), picks=picks)


def _inside(axis: IntArray, size: int, pad: str | None) -> IntArray:
    """Return the elements that replace those of an axis outside the array."""
    if pad == "edge" or size == 1:
        return np.clip(axis, 0, size - 1)
    period = 2 * (size - 1)
    folded = np.mod(axis, period)
    return np.where(folded < size, folded, period - folded)


_MOST_NAMED = 3


def describe_missing(plan: BoxPlan, box: int) -> str:
    """Return, for example, ``chunks (3,), (4,) of the array PLACE are not in the store``, as far as planning knew."""
    owner = np.repeat(np.arange(len(plan.chunks)), np.diff(plan.targets.bounds))
    lacking = owner[(plan.targets.box == box) & (plan.chunks.offset[owner] == -1)]
    names = ", ".join(str(tuple(coords)) for coords in plan.chunks.coords[lacking[:_MOST_NAMED]].tolist())
    what = f"chunk{'s' if len(lacking) > 1 else ''} {names}" if len(lacking) else "a chunk"
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    place = plan.request.arrays[int(plan.request.which[box])].place
    return f"{what}{more} of the array {place} {'are' if len(lacking) > 1 else 'is'} not in the store"
