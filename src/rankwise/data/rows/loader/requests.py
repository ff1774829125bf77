"""`Requests`: the rows of load requests, read in the background, pass after pass."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.feed.memory.csr import scipy_csr
from rankwise.data.feed.memory.lease import Lease, Leases
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.prefetch import LEAST_DEPTH, ReadAhead
from rankwise.data.rows.matrices.damage import finished_plain, row_errors
from rankwise.data.rows.matrices.matrix import StoredMatrix, gather_rows
from rankwise.data.rows.matrices.stacks import stack_matrices
from rankwise.data.rows.types import LoadRequest
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowOrder:
    """The rows of one load request, in batch order."""

    rows: IntArray  # int64[n], rows over all datasets, batch after batch
    edges: tuple[int, ...]  # start of each batch in `rows`, and the end of the last


def order_rows(request: LoadRequest, n_obs: int) -> RowOrder:
    """Return the rows of a request; rows in no split are left out."""
    rows = _listed(request["requests"])
    if len(rows) and not (rows.min() >= 0 and rows.max() < n_obs):
        raise ConfigError(
            f"a sampler requested rows {rows.min()} to {rows.max()}, but the loader has {n_obs}, counted from 0"
        )
    splits = [np.asarray(split) for split in request["splits"]]
    for split in splits:
        if split.ndim != 1 or (len(split) and split.dtype.kind not in "iu"):
            raise ConfigError(
                f"splits must be lists of indices into a request, integers along one axis (for a mask use "
                f"numpy.flatnonzero(mask)); got {split.dtype}{list(split.shape)}"
            )
    places = np.concatenate([np.empty(0, dtype=np.int64), *splits]).astype(np.int64, copy=False)
    if len(places) and not (places.min() >= 0 and places.max() < len(rows)):
        raise ConfigError(
            f"a sampler's splits have indices {places.min()} to {places.max()} into a request of {len(rows)} rows"
        )
    edges = np.cumsum([0, *(len(split) for split in splits)])
    return RowOrder(rows=rows[places], edges=tuple(edges.tolist()))


def _listed(requests: Any) -> IntArray:
    if isinstance(requests, np.ndarray):
        if requests.ndim != 1 or requests.dtype.kind not in "iu":
            raise ConfigError(
                f"requests must be integers along one axis, or slices; got {requests.dtype}{list(requests.shape)}"
            )
        return requests.astype(np.int64, copy=False)
    runs = list(requests)
    wrong = [
        run
        for run in runs
        if not isinstance(run, slice) or run.start is None or run.stop is None or run.step not in (None, 1)
    ]
    if wrong:
        raise ConfigError(
            "requests must be slices with a start, a stop and the step 1, or a NumPy array of integers; got "
            f"{wrong[0]!r}"
        )
    starts = np.array([run.start for run in runs], dtype=np.int64)
    lengths = np.array([max(0, run.stop - run.start) for run in runs], dtype=np.int64)
    begin = np.cumsum(lengths) - lengths
    listed: IntArray = np.repeat(starts - begin, lengths) + np.arange(lengths.sum())
    return listed


_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Rows that were read."""

    # for dense rows one array [n, *row shape]; for a CSR matrix data [nnz], indices [nnz] and indptr [n + 1]
    arrays: tuple[NDArray, ...]
    num_cols: int | None  # columns of a CSR matrix; None for dense rows
    errors: Mapping[int, DataError]  # errors of rows, by their place in the block
    lease: Lease  # of their memory; leave it when other rows are needed

    def part(self, first: int, last: int) -> Any:
        """Return rows [first, last): a view of an array, or a CSR matrix over views."""
        for place in sorted(self.errors):
            if first <= place < last:
                raise self.errors[place]
        if self.num_cols is None:
            return self.arrays[0][first:last]
        data, indices, indptr = self.arrays
        begin, end = int(indptr[first]), int(indptr[last])
        pointers: IntArray = indptr[first : last + 1] - begin
        if end - begin <= _MOST_INT32 and indices.dtype == np.int32:
            pointers = pointers.astype(np.int32)  # both need one dtype for SciPy and torch
        return scipy_csr((data[begin:end], indices[begin:end], pointers), self.num_cols)


class StoredRows:
    """Rows of concatenated matrices of one kind in Zarr stores."""

    def __init__(self, matrices: Sequence[StoredMatrix], reader: BoxReader) -> None:
        self._stack = stack_matrices(matrices)
        self._matrices = tuple(matrices)
        self._reader = reader
        self._pool = MemoryPool()

    def read(self, rows: IntArray, lease: Lease) -> RowBlock:
        """Read and decode rows directly in the requested order; errors are reported for each row."""
        plan = self._stack.plan(rows, self._reader)
        self._reader.hint(plan.boxes)
        spec, shape = self._stack.spec, (plan.num_rows, *self._stack.spec.shape)
        # memory for one request: batches are views of it, and may be kept
        if plan.lengths is None:
            arrays: tuple[NDArray, ...] = (self._pool.take(math.prod(shape), spec.dtype, lease=lease).reshape(shape),)
        else:
            dtypes = (spec.dtype, spec.index_dtype)
            elements = [self._pool.take(plan.num_elements, dtype, lease=lease) for dtype in dtypes]
            arrays = (*elements, np.zeros(plan.num_rows + 1, dtype=np.int64))
        finished = finished_plain(plan, arrays, spec, self._reader.read(plan.jobs(arrays)))
        errors = row_errors(rows, self._matrices, {"": (plan, finished, spec)}, ids=rows, word="row")
        num_cols = None if plan.lengths is None else spec.shape[0]
        return RowBlock(arrays=arrays, num_cols=num_cols, errors=errors, lease=lease)


class MemoryRows:
    """Rows of concatenated NumPy arrays, or of SciPy CSR matrices."""

    def __init__(self, matrices: Sequence[Any]) -> None:
        self._matrices = tuple(matrices)
        self._ends: IntArray = np.cumsum([matrix.shape[0] for matrix in matrices])

    def read(self, rows: IntArray, lease: Lease) -> RowBlock:
        """Return copies of rows, in their order."""
        is_dense = isinstance(self._matrices[0], np.ndarray)
        num_cols = None if is_dense else int(self._matrices[0].shape[1])
        return RowBlock(arrays=gather_rows(self._matrices, self._ends, rows), num_cols=num_cols, errors={}, lease=lease)


RowsReader: TypeAlias = StoredRows | MemoryRows
"""Reads rows in the requested order, in one thread at a time."""


_IN_MEMORY = 2  # one in use, one being read


class RequestReader(Leases):
    """Implements `Reader`: reads the rows of load requests into leased memory.

    After a request with at most half its rows, which is used up early, one is read while two are in memory.
    """

    def __init__(self, rows: RowsReader) -> None:
        super().__init__()
        self._rows = rows

    def read(
        self,
        steps: Iterable[RowOrder],
        is_asked: Callable[[], bool],  # noqa: ARG002  (an error waits behind the requests before it)
    ) -> Generator[RowBlock, None, None]:
        """Yield the rows of each request."""
        num_last = 0
        for order in steps:
            num_rows = len(order.rows)
            is_short, num_last = 0 < 2 * num_last <= num_rows, num_rows
            lease = self.acquire(_IN_MEMORY + is_short)
            if lease is None:
                return
            found = [self._rows.read(order.rows, lease)]
            del lease
            yield found.pop()  # no local name: it would keep its memory while the next one is read


class Requests:
    """The load requests of successive passes, with memory that passes share.

    The thread that takes requests also draws them, so drawing needs no lock. Once all requests of a pass are drawn, the
    first one of the next pass is read too, while the last one is in use; `start` does the same before any pass. It is
    dropped if that pass begins with other rows.
    """

    def __init__(self, rows: RowsReader) -> None:
        self._rows = rows
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._foreseen: RowOrder | None = None  # is read, but not asked for
        self._drawn: deque[RowOrder] = deque()  # for the reader thread; its steps never exceed these
        self._ahead: ReadAhead[RowOrder, RowBlock] = ReadAhead(
            RequestReader(self._rows), _emptied(self._drawn), depth=LEAST_DEPTH
        )

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one that reads."""
        return self._ahead.is_elsewhere

    def start(self, order: RowOrder) -> None:
        """Read the request that will be asked for next; returns at once, may be called again."""
        self._check_here()
        if self._foreseen is not None:
            if self._foreseen.edges == order.edges and np.array_equal(self._foreseen.rows, order.rows):
                return
            self.leave()
        self._foreseen = order
        self._drawn.append(order)
        self._ahead.ask(0, beyond=1)

    def read(
        self, orders: Iterator[RowOrder], obs: Callable[[], Any], following: Callable[[], RowOrder | None]
    ) -> Iterator[tuple[RowOrder, RowBlock, Any]]:
        """Yield the requests of a pass: each with its rows, and their part of obs.

        Args:
            orders: the requests, drawn up to three ahead.
            obs: returns the pandas.DataFrame about all rows, or None; called after reading has begun.
            following: called when all are drawn: returns the first request of the next pass, None = unknown.
        """
        asked, failed = deque[tuple[RowOrder, Any]](), None
        try:
            for order in orders:
                self.start(order)
                self._foreseen = None
                self._ahead.ask(1, beyond=0)
                asked.append((order, obs()))  # tables are joined at the first call, while the rows are read
                if len(asked) > _IN_MEMORY:  # so far ahead that the last one is known before it is read
                    yield self._taken(*asked.popleft())
            foreseen = following()
            if foreseen is not None:
                self.start(foreseen)
        except Exception as error:  # noqa: BLE001  (raised in its turn)
            failed = error
        while asked:
            yield self._taken(*asked.popleft())
        if failed is not None:
            raise failed

    def _taken(self, order: RowOrder, table: Any) -> tuple[RowOrder, RowBlock, Any]:
        return order, self.take(), None if table is None else table.iloc[order.rows]

    def take(self) -> RowBlock:
        """Wait for the rows of the next request. `rankwise profile` times this method."""
        self._check_here()
        block = self._ahead.take()
        if block is None:
            raise RuntimeError("this process is ending: nothing more is read")
        return block

    def _check_here(self) -> None:
        if self.is_elsewhere:
            raise RuntimeError("a pass cannot continue in a process that was forked during it: iterate again there")

    def leave(self) -> None:
        """End the pass here: drop drawn requests, and wait for the one being read."""
        if not self.is_elsewhere:  # in a forked process nothing reads, and a lock may be held for ever
            self._ahead.close()
            self._begin_anew()


def _emptied(drawn: deque[RowOrder]) -> Iterator[RowOrder]:
    while drawn:
        yield drawn.popleft()
