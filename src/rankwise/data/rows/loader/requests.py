"""Load requests: blocks of rows, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.feed.memory.csr import scipy_csr
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError, DataError

__all__ = ["RowBlock", "RowOrder", "order_rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowOrder:
    """What one load request comes to.

    Attributes:
        rows: int64[n], rows over all datasets, batch after batch.
        edges: where each batch begins in `rows`, and the end of the last.
    """

    rows: IntArray
    edges: tuple[int, ...]


def order_rows(request: LoadRequest, n_obs: int) -> RowOrder:
    """Return the rows of a request; those that no split names are left out.

    Args:
        request: with splits.
        n_obs: rows of all datasets.

    Raises:
        ConfigError: it names rows or places that there are not.
    """
    rows = _listed(request["requests"])
    if len(rows) and not (rows.min() >= 0 and rows.max() < n_obs):
        raise ConfigError(
            f"a sampler asked for rows {rows.min()} to {rows.max()}, the loader has {n_obs}, counted from 0"
        )
    splits = [_places(split) for split in request["splits"]]
    places = np.concatenate([np.empty(0, dtype=np.int64), *splits]).astype(np.int64, copy=False)
    if len(places) and not (places.min() >= 0 and places.max() < len(rows)):
        raise ConfigError(
            f"a sampler's splits name places {places.min()} to {places.max()} of a request of {len(rows)} rows"
        )
    edges = np.cumsum([0, *(len(split) for split in splits)])
    return RowOrder(rows=rows[places], edges=tuple(edges.tolist()))


def _listed(requests: Any) -> IntArray:
    if isinstance(requests, np.ndarray):
        if requests.ndim != 1 or requests.dtype.kind not in "iu":
            raise ConfigError(
                f"requests want whole numbers along one axis, or slices; got {requests.dtype}{list(requests.shape)}"
            )
        return requests.astype(np.int64, copy=False)
    runs = list(requests)
    wrong = [run for run in runs if not _is_run(run)]
    if wrong:
        raise ConfigError(
            "requests are slices with a start, a stop and the step 1, or a NumPy array of whole numbers; got "
            f"{wrong[0]!r}"
        )
    starts = np.array([run.start for run in runs], dtype=np.int64)
    lengths = np.array([max(0, run.stop - run.start) for run in runs], dtype=np.int64)
    begin = np.cumsum(lengths) - lengths
    listed: IntArray = np.repeat(starts - begin, lengths) + np.arange(lengths.sum())
    return listed


def _is_run(run: Any) -> bool:
    return isinstance(run, slice) and run.start is not None and run.stop is not None and run.step in (None, 1)


def _places(split: Any) -> IntArray:
    found = np.asarray(split)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise ConfigError(
            f"splits are lists of places in a request, whole numbers along one axis (of a mask take "
            f"numpy.flatnonzero(mask)); got {found.dtype}{list(found.shape)}"
        )
    return found


_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Rows as they were read.

    Attributes:
        arrays: of dense rows one array [n, *row shape]; of a CSR matrix data [nnz], indices [nnz] and indptr [n + 1].
        num_cols: columns of a CSR matrix; None for dense rows.
        errors: why rows could not be read, by their place in the block.
    """

    arrays: tuple[NDArray, ...]
    num_cols: int | None
    errors: Mapping[int, DataError]

    def part(self, first: int, last: int) -> Any:
        """Return rows [first, last): a view of an array, or a CSR matrix over views.

        Raises:
            DataError: one of them could not be read.
        """
        for place in sorted(self.errors):
            if first <= place < last:
                raise self.errors[place]
        if self.num_cols is None:
            return self.arrays[0][first:last]
        data, indices, indptr = self.arrays
        begin, end = int(indptr[first]), int(indptr[last])
        pointers: IntArray = indptr[first : last + 1] - begin
        if end - begin <= _MOST_INT32 and indices.dtype == np.int32:
            pointers = pointers.astype(np.int32)  # both of one dtype, as scipy and torch want it
        return scipy_csr((data[begin:end], indices[begin:end], pointers), self.num_cols)
