"""`spread_rows`: CSR rows into dense ones, all columns or chosen ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import NDArray
from rankwise.data.rows.dense.compiled import compiled_spread

__all__ = ["OUTSIDE", "Crew", "spread_rows"]

States = npt.NDArray[np.uint8]
Crew: TypeAlias = Callable[[Iterable[Callable[[], None]]], None]
OUTSIDE, TWICE = 1, 2
_PIECE_BYTES = 2**20  # some hundred microseconds: far more than handing it to a thread takes


def spread_rows(
    data: NDArray,
    indices: NDArray,
    indptr: NDArray,
    *,
    num_cols: int,
    places: npt.NDArray[np.int32] | None,
    out: NDArray,
    crew: Crew | None = None,
) -> States:
    """Write CSR rows into dense rows; columns that a row has several times are added up.

    Args:
        data: [nnz], of the dtype of `out`.
        indices: [nnz], columns; int32 or int64, as is `indptr`.
        indptr: [B + 1].
        num_cols: columns of the CSR rows.
        places: int32[num_cols], where a column goes in a dense row, -1 = nowhere; None = to its own number.
        out: [B, width], C-contiguous; whatever it held is overwritten.
        crew: shares the work among threads, such as `BoxReader.run_tasks`; None = the calling thread does it.

    Returns:
        uint8[B]: not 0 where a row names a column that there is not, which is left out then.
    """
    states: States = np.zeros(len(out), dtype=np.uint8)
    loop = compiled_spread(data.dtype.itemsize, indices.dtype.itemsize)
    if loop is None or out.size == 0:
        return _by_numpy((data, indices, indptr), num_cols, places, out, states)
    moved = 0 if places is None else places.ctypes.data
    addresses = data.ctypes.data, indices.ctypes.data, indptr.ctypes.data
    given = (*addresses, moved, num_cols, out.ctypes.data, out.shape[1])
    pieces = 1 if crew is None else max(1, min(len(out), out.nbytes // _PIECE_BYTES))
    cuts = [piece * len(out) // pieces for piece in range(pieces + 1)]
    tasks = [partial(_do, loop, (*given, *ends, states.ctypes.data)) for ends in itertools.pairwise(cuts)]
    if crew is None or pieces == 1:
        tasks[0]()
    else:
        crew(tasks)
    twice = np.flatnonzero(states & TWICE)
    if len(twice):  # the loop moves elements without adding any: such rows are rare, no writer of ours makes them
        for row in twice.tolist():
            one = slice(row, row + 1)
            part = slice(int(indptr[row]), int(indptr[row + 1]))
            bounds = np.array([0, part.stop - part.start], dtype=indptr.dtype)
            _by_numpy((data[part], indices[part], bounds), num_cols, places, out[one], states[one])
    return states


def _do(loop: Callable[..., int], arguments: tuple[int, ...]) -> None:
    loop(*arguments)


def _by_numpy(
    csr: tuple[NDArray, NDArray, NDArray],
    num_cols: int,
    places: npt.NDArray[np.int32] | None,
    out: NDArray,
    states: States,
) -> States:
    """Do the same in NumPy."""
    data, indices, indptr = csr
    out[...] = 0
    states[...] = 0
    rows = np.repeat(np.arange(len(out)), np.diff(indptr))
    known = (indices >= 0) & (indices < num_cols)
    states[rows[~known]] = OUTSIDE
    columns = np.where(known, indices, 0).astype(np.int64)
    at = columns if places is None else places[columns]
    chosen = known & (at >= 0)
    if out.dtype.kind == "b":
        np.logical_or.at(out, (rows[chosen], at[chosen]), data[chosen])
    else:
        np.add.at(out, (rows[chosen], at[chosen]), data[chosen])
    return states
