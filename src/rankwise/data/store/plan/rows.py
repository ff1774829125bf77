"""Plans for boxes that are whole rows or runs of rows: cut along the first axis only, in compiled loops."""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankwise._process.forks import forks_wait
from rankwise.data.contract import IntArray
from rankwise.data.store.boxes import BoxRequest
from rankwise.data.store.plan.lookup import TargetTable

__all__ = ["RowCut", "cut_rows"]

_LOG = logging.getLogger("rankwise.data")
_SPARSEST = 8  # up to this ratio of chunks to rows, all chunks are counted one by one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowCut:
    """Rows cut at chunk edges.

    Attributes:
        array: int64[K], array of each needed chunk, ascending.
        number: int64[K], its index along the first axis, ascending in each array.
    """

    array: IntArray
    number: IntArray
    _request: BoxRequest
    _job: IntArray
    _held: tuple[IntArray, ...]
    _counts: IntArray
    _total: int

    @property
    def coords(self) -> IntArray:
        """int64[K, ndim], coordinates of the chunks."""
        coords = np.zeros((len(self.number), len(self._request.shape)), dtype=np.int64)
        coords[:, 0] = self.number
        return coords

    def targets(self, order: IntArray) -> TargetTable:
        """Return the places that chunks fill; call it once only.

        Args:
            order: int64[K], the chunks in reading order.
        """
        from rankwise.data.store.decode.tasks import address_of

        shape, total, counts = self._request.shape, self._total, self._counts
        there = np.flatnonzero(counts)[order]
        bounds = np.zeros(len(there) + 1, dtype=np.int64)
        np.cumsum(counts[there], out=bounds[1:])
        counts[there] = bounds[:-1]
        box, dst_start = np.empty((2, total), dtype=np.int64)
        src_start, extent = np.zeros((total, len(shape)), dtype=np.int64), np.empty((total, len(shape)), dtype=np.int64)
        extent[:, 1:] = shape[1:]
        self._job[-4:] = [address_of(table) for table in (box, src_start, extent, dst_start)]
        loops = _loops()
        assert loops is not None
        loops[1](address_of(self._job))
        return TargetTable(bounds=bounds, box=box, src_start=src_start, extent=extent, dst_start=dst_start)


def cut_rows(request: BoxRequest) -> RowCut | None:
    """Return the cut of a request for whole rows; None for others, for few rows of very long arrays, without numba."""
    from rankwise.data.store.decode.tasks import address_of

    grid = [-(-array.shape[0] // array.chunks[0]) for array in request.arrays]
    if not _are_rows(request) or sum(grid) > _SPARSEST * len(request):
        return None
    loops = _loops()
    if loops is None:
        return None
    chunks = np.array([array.chunks[0] for array in request.arrays], dtype=np.int64)
    bases = np.concatenate([[0], np.cumsum(grid)]).astype(np.int64)
    counts = np.zeros(bases[-1], dtype=np.int64)
    runs, shape, starts = request.runs, request.shape, np.ascontiguousarray(request.starts)
    places = np.arange(len(request), dtype=np.int64) * shape[0] if runs is None else np.ascontiguousarray(runs.places)
    lengths = None if runs is None else np.ascontiguousarray(runs.lengths)
    which = np.ascontiguousarray(request.which)
    held = (starts, which, chunks, bases, places, *([] if lengths is None else [lengths]))
    job = np.array(
        [
            len(request), address_of(starts), len(shape), 0 if lengths is None else address_of(lengths), shape[0],
            address_of(which), address_of(chunks), address_of(bases), address_of(counts),
            address_of(places), math.prod(shape[1:]), len(shape), 0, 0, 0, 0,
        ],
        dtype=np.int64,
    )  # fmt: skip
    total = loops[0](address_of(job))
    there = np.flatnonzero(counts)
    array = np.searchsorted(bases, there, side="right") - 1
    return RowCut(
        array=array, number=there - bases[array],
        _request=request, _job=job, _held=held, _counts=counts, _total=total,
    )  # fmt: skip


def _are_rows(request: BoxRequest) -> bool:
    if request.pad is not None or not len(request):
        return False
    return all(
        array.shape[1:] == request.shape[1:]
        and all(chunk >= size for chunk, size in zip(array.chunks[1:], array.shape[1:], strict=True))
        for array in request.arrays
    )


@functools.cache
def _loops() -> tuple[Callable[[int], int], Callable[[int], int]] | None:
    """Return the loops, which run without the interpreter's lock; None if NumPy has to be used."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    try:
        with forks_wait:
            return _loaded_loops()
    except Exception as error:  # noqa: BLE001  (whatever goes wrong while compiling: there is another way)
        _LOG.debug("row plans are made by NumPy, which is slower: %s: %s", type(error).__name__, error)
        return None


def _loaded_loops() -> tuple[Callable[[int], int], Callable[[int], int]]:
    from rankwise.data.store.decode.compiler import compiled_address
    from rankwise.data.store.decode.machine import types
    from rankwise.data.store.plan import row_loops

    made = []
    for loop in (row_loops.count_pieces, row_loops.place_pieces):
        address, _ = compiled_address(loop, loop.__name__, types.int64(types.int64))
        made.append(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address))
    return made[0], made[1]
