"""One field of the samples: rows of a Zarr array or of a NumPy array, behind one small interface."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray, ReadReport
from rankwise.data.store import StoredArray, StoreStats
from rankwise.errors import ConfigError, DataError, SampleError

__all__ = ["Column", "ColumnPlan", "MemoryColumn", "StoredColumn"]

_LOCAL_BYTES = 2**20
_PROBE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """Which rows of a column fill a share, grouped by chunk: each chunk is looked at once.

    Attributes:
        ids: int64[B], row of each place of the share.
        order: int64[B], the places, sorted by chunk and row.
        chunks: int64[K], different chunks, ascending.
        bounds: int64[K + 1], where the places of each chunk lie in `order`.
    """

    ids: IntArray
    order: IntArray
    chunks: IntArray
    bounds: IntArray


class Column(Protocol):
    """One field of a source."""

    @property
    def place(self) -> str:
        """Where it lies, for messages."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        ...

    @property
    def chunk_rows(self) -> int:
        """Neighbouring samples that are read together, at least 1."""
        ...

    @property
    def spec(self) -> FieldSpec:
        """What a sample looks like."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of the content's metadata."""
        ...

    @property
    def stats(self) -> StoreStats:
        """What was read."""
        ...

    def plan(self, ids: IntArray) -> ColumnPlan:
        """Return how rows are read."""
        ...

    def cost(self, plan: ColumnPlan) -> tuple[int, int, int]:
        """Return chunks to decode, bytes to read (as far as known) and bytes to decode."""
        ...

    def hint(self, plan: ColumnPlan) -> None:
        """Say that a plan will be read soon."""
        ...

    def read(self, plan: ColumnPlan, into: NDArray) -> ReadReport:
        """Fill ``into[place]`` for every place of the plan; what fails is reported, not raised."""
        ...


class MemoryColumn:
    """Rows of a NumPy array, memory-mapped ones included.

    Args:
        array: the array; its first axis are the samples.
        place: what to call it in messages.

    Raises:
        ConfigError: it has no axis, or holds objects.
    """

    def __init__(self, array: NDArray, *, place: str) -> None:
        if array.ndim == 0:
            raise ConfigError(f"{place} is a single value; samples lie along axis 0 of an array")
        if array.dtype.hasobject or array.dtype.kind == "T":
            raise ConfigError(f"{place} has dtype {array.dtype}: objects cannot form a batch; store numbers")
        self._array = array
        self.place = place
        self.spec = FieldSpec(shape=array.shape[1:], dtype=array.dtype.newbyteorder("="))
        self.num_rows = len(array)
        # Rows in memory have no neighbourhood worth keeping: an order then shuffles them one by one.
        self.chunk_rows = max(1, _LOCAL_BYTES // max(1, self._row_bytes)) if isinstance(array, np.memmap) else 1
        self.fingerprint = self._hash()
        self.stats = StoreStats()

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self.spec.shape, dtype=np.int64)) * self.spec.dtype.itemsize

    def plan(self, ids: IntArray) -> ColumnPlan:
        """Return the rows as they come."""
        nothing = np.empty(0, dtype=np.int64)
        return ColumnPlan(ids=ids, order=nothing, chunks=nothing, bounds=nothing)

    def cost(self, plan: ColumnPlan) -> tuple[int, int, int]:  # noqa: ARG002  (nothing is decoded)
        """Return zeros."""
        return 0, 0, 0

    def hint(self, plan: ColumnPlan) -> None:
        """Do nothing."""

    def read(self, plan: ColumnPlan, into: NDArray) -> ReadReport:
        """Copy the rows."""
        into[...] = self._array[plan.ids]
        return ReadReport(valid=np.ones(len(plan.ids), dtype=np.bool_))

    def _hash(self) -> str:
        """Shape, dtype, and the bytes of a few rows spread over the array (1 MiB of them)."""
        digest = hashlib.sha256(repr((self._array.shape, self.spec.dtype.str)).encode())
        if self._array.size:
            num_probes = int(np.clip(_PROBE_BYTES // self._row_bytes, 1, self.num_rows))
            probes = np.linspace(0, self.num_rows - 1, num_probes).astype(np.int64)
            digest.update(np.ascontiguousarray(self._array[probes], dtype=self.spec.dtype).tobytes()[:_PROBE_BYTES])
        return digest.hexdigest()[:16]


class StoredColumn:
    """Rows of a Zarr array.

    Args:
        array: the array.
        missing: "fill" takes the fill value for chunks that are not in the store, "error" refuses them.
    """

    def __init__(self, array: StoredArray, *, missing: str) -> None:
        self._array = array
        self._missing = missing
        self.place = array.place
        self.num_rows = len(array)
        self.chunk_rows = array.grid.chunk_rows
        self.row_bytes = array.row_bytes
        self.spec = FieldSpec(shape=array.shape[1:], dtype=array.dtype)
        self.fingerprint = array.fingerprint

    @property
    def stats(self) -> StoreStats:
        """What was read."""
        return self._array.stats

    def plan(self, ids: IntArray) -> ColumnPlan:
        """Group the rows by chunk."""
        order = np.argsort(ids, kind="stable")
        chunks, first = np.unique(ids[order] // self.chunk_rows, return_index=True)
        return ColumnPlan(ids=ids, order=order, chunks=chunks, bounds=np.append(first, len(ids)).astype(np.int64))

    def cost(self, plan: ColumnPlan) -> tuple[int, int, int]:
        """Count what is not cached now."""
        wanted = [chunk for chunk in plan.chunks.tolist() if not self._array.is_cached(chunk)]
        read_bytes = 0
        for chunk in wanted:
            try:
                found = self._array.find(chunk)
            except DataError:
                continue  # reading it says so
            read_bytes += found.num_bytes if found else 0
        return len(wanted), read_bytes, len(wanted) * self._array.chunk_bytes

    def hint(self, plan: ColumnPlan) -> None:
        """Ask the system for the bytes of the chunks."""
        for chunk in plan.chunks.tolist():
            self._array.hint(chunk)

    def read(self, plan: ColumnPlan, into: NDArray) -> ReadReport:
        """Decode each chunk once (or find it in the cache) and scatter its rows."""
        valid = np.ones(len(plan.ids), dtype=np.bool_)
        errors: list[SampleError] = []
        counted = StoreStats()
        for k, chunk in enumerate(plan.chunks.tolist()):
            places = plan.order[plan.bounds[k] : plan.bounds[k + 1]]
            rows = plan.ids[places]
            try:
                self._refuse_missing(chunk)
                into[places], stats = self._array.read_rows(chunk, rows)
                counted = counted + stats
            except DataError as error:
                valid[places] = False
                errors += [self._sample_error(row, chunk, error) for row in rows.tolist()]
        return ReadReport(
            valid=valid,
            fill_chunks=counted.fill_chunks,
            slow_chunks=counted.chunks_decoded,
            errors=tuple(errors),
        )

    def _refuse_missing(self, chunk: int) -> None:
        if self._missing == "fill" or self._array.is_cached(chunk):
            return
        found = self._array.find(chunk)
        if found is not None and found.num_missing:
            raise DataError(
                f"{found.num_missing} inner chunks of chunk {chunk} are not in the store and would stand for the fill "
                "value: copy the store whole, or allow it with missing='fill'"
            )

    def _sample_error(self, sample: int, chunk: int, error: DataError) -> SampleError:
        place = f"{self.place}, chunk {chunk}"
        made = SampleError(f"sample {sample} cannot be read ({place}): {error}", sample=sample, place=place)
        made.__cause__ = error
        return made
