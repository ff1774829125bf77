"""`make_plan`: turns a request for boxes into chunks in files, and the places that they fill."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, NDArray
from rankwise.data.store.boxes import BoxError, BoxRequest
from rankwise.data.store.files import FactsCache
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan.grids import Pieces, any_axis, distinct, expand, grid_of, ravel
from rankwise.data.store.plan.lookup import BoxPlan, ChunkTable, Located, PaddedBox, TargetTable, locate
from rankwise.data.store.shard import MISSING

__all__ = ["describe_missing", "make_plan"]

_COUNTED = 2**16


def make_plan(
    request: BoxRequest, facts_cache: FactsCache, serial: Callable[[ArrayMeta], int], *, like: BoxPlan | None = None
) -> BoxPlan:
    """Return the plan for a request. Reads facts of files and shard indexes, not data.

    Args:
        request: the request.
        facts_cache: facts about files.
        serial: returns a number that identifies an array.
        like: a plan for the same boxes of other arrays: if the chunk grids are equal, only the locations of
            chunks in files are looked up.
    """
    twin = None if like is None or not _same_boxes(request, like) else _plan_like(request, like, facts_cache, serial)
    if twin is not None:
        return twin
    low, high = request.starts, request.starts + request.extents
    outside = padded = np.zeros(len(request), dtype=np.bool_)
    if request.pad is not None:  # else the request has refused boxes that extend beyond their array
        shapes = _of_arrays([array.shape for array in request.arrays], request.which, low.shape[1])
        outside = any_axis((low < 0) | (high > shapes))
        low, high = np.clip(low, 0, shapes), np.clip(high, 0, shapes)
    if request.pad in ("edge", "reflect"):
        padded = outside
        high[padded] = low[padded]  # a padded box has no pieces of its own
    pieces = expand(low, high, _of_arrays([array.chunks for array in request.arrays], request.which, low.shape[1]))
    chunks, targets, located = _tables(request, pieces, facts_cache, serial)
    padded_boxes = tuple(_odd_box(request, int(box), facts_cache, serial) for box in np.flatnonzero(padded))
    return _finished(request, chunks, targets, located, filled=outside & ~padded, padded=padded_boxes)


def _finished(
    request: BoxRequest,
    chunks: ChunkTable,
    targets: TargetTable,
    located: Located,
    *,
    filled: BoolArray,
    padded: tuple[PaddedBox, ...] = (),
) -> BoxPlan:
    sizes: NDArray = np.array([meta.chunk_bytes for meta in request.arrays], dtype=np.int64)
    return BoxPlan(
        request=request,
        files=located.files,
        chunks=chunks,
        targets=targets,
        filled=filled,
        padded=padded,
        failed=_failed(located, chunks, targets),
        read_bytes=int(chunks.length[chunks.length > 0].sum()),
        decode_bytes=int(sizes[chunks.array[chunks.offset >= 0]].sum()),
    )


def _same_boxes(request: BoxRequest, like: BoxPlan) -> bool:
    """Whether boxes are identical, and cut by the same grids."""
    other = like.request
    same = request.which is other.which and request.starts is other.starts and request.runs is other.runs
    if not same or request.shape != other.shape or request.pad is not None or other.pad is not None:
        return False
    return [(a.shape, a.chunks) for a in request.arrays] == [(a.shape, a.chunks) for a in other.arrays]


def _plan_like(
    request: BoxRequest, like: BoxPlan, facts_cache: FactsCache, serial: Callable[[ArrayMeta], int]
) -> BoxPlan | None:
    """Return the same plan with other files; None if their chunks have another order."""
    located = locate(request.arrays, like.chunks.array, like.chunks.coords, facts_cache, serial)
    keys = (located.offset < 0, located.file, located.offset)
    if not _ascending(keys):
        return None
    chunks = replace(like.chunks, file=located.file, offset=located.offset, length=located.length)
    return _finished(request, chunks, like.targets, located, filled=like.filled)


def _ascending(keys: tuple[NDArray, ...]) -> bool:
    """Whether rows of keys are sorted, with the first key as the primary one."""
    in_order: NDArray = np.ones(max(0, len(keys[0]) - 1), dtype=np.bool_)
    for key in reversed(keys):
        in_order = (key[:-1] < key[1:]) | ((key[:-1] == key[1:]) & in_order)
    return bool(in_order.all())


def _of_arrays(shapes: Sequence[tuple[int, ...]], which: IntArray, ndim: int) -> IntArray:
    """Return one shape for each element of `which`, that of its array: int64[n, ndim]."""
    rows = np.array(shapes, dtype=np.int64).reshape(len(shapes), ndim)
    if len(rows) == 1:
        return np.broadcast_to(rows, (len(which), ndim))
    return rows.take(which, axis=0)


def _tables(
    request: BoxRequest, pieces: Pieces, facts_cache: FactsCache, serial: Callable[[ArrayMeta], int]
) -> tuple[ChunkTable, TargetTable, Located]:
    array = request.which[pieces.box]
    grids = [grid_of(meta.shape, meta.chunks) for meta in request.arrays]
    number = ravel(pieces.coords, _of_arrays(grids, array, len(request.shape)))
    first, inverse = distinct(array, number, [math.prod(grid) for grid in grids])
    located = locate(request.arrays, array[first], pieces.coords[first], facts_cache, serial)
    order = np.lexsort((located.offset, located.file, located.offset < 0))
    chunks = ChunkTable(
        array=array[first][order],
        number=number[first][order],
        coords=pieces.coords[first][order],
        file=located.file[order],
        offset=located.offset[order],
        length=located.length[order],
    )
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return chunks, _targets(request, pieces, position[inverse], len(order)), located


def _targets(request: BoxRequest, pieces: Pieces, chunk: IntArray, num_chunks: int) -> TargetTable:
    # NumPy sorts 16 bits by radix sort
    by_chunk = np.argsort(chunk.astype(np.uint16) if num_chunks <= _COUNTED else chunk, kind="stable")
    strides = np.cumprod((1, *request.shape[:0:-1]), dtype=np.int64)[::-1]
    inside = pieces.begin - request.starts.take(pieces.box, axis=0)
    at = request.firsts.take(pieces.box)
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


def _failed(located: Located, chunks: ChunkTable, targets: TargetTable) -> tuple[BoxError, ...]:
    """Return one error for each box with a chunk that could not be located."""
    failed: dict[int, BoxError] = {}
    for file, failure in located.failures.items():
        for chunk in np.flatnonzero((chunks.file == file) & (chunks.offset < MISSING)).tolist():
            for box in targets.box[targets.bounds[chunk] : targets.bounds[chunk + 1]].tolist():
                error = BoxError(box=box, place=failure.place, error=failure.error, damage=failure.damage)
                failed.setdefault(box, error)
    return tuple(failed[box] for box in sorted(failed))


def _odd_box(request: BoxRequest, box: int, facts_cache: FactsCache, serial: Callable[[ArrayMeta], int]) -> PaddedBox:
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
    return PaddedBox(box=box, plan=make_plan(region, facts_cache, serial), picks=picks)


def _inside(axis: IntArray, size: int, pad: str | None) -> IntArray:
    """Return the elements that replace those of an axis outside the array."""
    if pad == "edge" or size == 1:
        return np.clip(axis, 0, size - 1)
    period = 2 * (size - 1)
    folded = np.mod(axis, period)
    return np.where(folded < size, folded, period - folded)


_MOST_NAMED = 3


def describe_missing(plan: BoxPlan, box: int) -> str:
    """Return, for example, ``chunks (3,), (4,) of the array PLACE are not in the store``, as far as planning knew.

    Args:
        plan: the plan.
        box: a box with a missing chunk.
    """
    owner = np.repeat(np.arange(len(plan.chunks)), np.diff(plan.targets.bounds))
    lacking = owner[(plan.targets.box == box) & (plan.chunks.offset[owner] == -1)]
    names = ", ".join(str(tuple(coords)) for coords in plan.chunks.coords[lacking[:_MOST_NAMED]].tolist())
    what = f"chunk{'s' if len(lacking) > 1 else ''} {names}" if len(lacking) else "a chunk"
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    place = plan.request.arrays[int(plan.request.which[box])].place
    return f"{what}{more} of the array {place} {'are' if len(lacking) > 1 else 'is'} not in the store"
