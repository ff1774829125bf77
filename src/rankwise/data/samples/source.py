"""`ArraySource`: one sample is `array[i]` of each of its fields, Zarr and NumPy alike."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, IntArray, NDArray, ReadReport, Share
from rankwise.data.samples.column import Column, ColumnPlan, MemoryColumn, StoredColumn
from rankwise.data.store import DEFAULT_CACHE_BYTES, ChunkCache, StoredArray, StoreStats, open_array, open_arrays
from rankwise.data.store import wrap_array as wrap_zarr
from rankwise.errors import ConfigError, DataError, SampleError

__all__ = ["ArrayPlan", "ArraySource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """Implements `Plan`: how one share is read from every field."""

    share: Share
    columns: tuple[ColumnPlan, ...]
    num_chunks: int
    read_bytes: int
    decode_bytes: int

    @property
    def capacity(self) -> Mapping[str, int]:
        """Empty: no field is ragged."""
        return {}


class ArraySource:
    """Implements `Source` over arrays that share axis 0: sample i has the fields ``{name: array[i]}``.

    Also a map-style dataset: ``len(source)``, ``source[i]``; it may travel to other processes.

    Args:
        arrays: by field name: a NumPy array, a Zarr array, a path to a Zarr array (or URL), or a path to a ``.npy``
            file, which is memory-mapped.
        cache: bytes of decoded chunks kept in memory (default 256 MiB; 0 = none), or a `ChunkCache` that several
            sources share.
        missing: what a chunk that is not in the store stands for: "fill" = the array's fill value, as Zarr says
            (counted in the statistics), "error" = a damaged store.

    Raises:
        ConfigError: there are no arrays, their lengths differ, they are empty or hold objects.
        DataError: a path holds no array.
        MissingExtraError: an array is a Zarr array and zarr is not installed.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        missing: Literal["fill", "error"] = "fill",
    ) -> None:
        if not arrays:
            raise ConfigError("an ArraySource wants at least one array, such as {'image': array}; got none")
        if missing not in ("fill", "error"):
            raise ConfigError(f"missing= is 'fill' or 'error', got {missing!r}")
        self.cache = cache if isinstance(cache, ChunkCache) else ChunkCache(cache)
        self._columns = {
            name: _column(name, array, cache=self.cache, missing=missing) for name, array in arrays.items()
        }
        self._num_samples = _common_length(self._columns)
        self._fingerprint = _fingerprint(self._columns)
        self._fields = MappingProxyType({name: column.spec for name, column in self._columns.items()})

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        fields: Sequence[str] | Mapping[str, str] | None = None,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        missing: Literal["fill", "error"] = "fill",
    ) -> Self:
        """Open the arrays of a Zarr group.

        Args:
            uri: folder or URL of the group.
            fields: which of its arrays; a mapping ``{field: array}`` renames them; None = all that it holds, by name.
            cache: see the class.
            missing: see the class.

        Raises:
            ConfigError: lengths differ (the message lists them), or an array is empty or holds objects.
            DataError: there is no group, or it lacks an array (the message lists what there is).
            MissingExtraError: zarr is not installed.
        """
        shared = cache if isinstance(cache, ChunkCache) else ChunkCache(cache)
        arrays = open_arrays(uri, cache=shared)
        if not arrays:
            raise DataError(f"the Zarr group {uri} holds no arrays")
        if isinstance(fields, str):
            raise ConfigError(f"fields= is a list of names, got the text {fields!r}: write fields=[{fields!r}]")
        names = (
            fields
            if isinstance(fields, Mapping)
            else {name: name for name in (sorted(arrays) if fields is None else fields)}
        )
        return cls({name: arrays[array] for name, array in names.items()}, cache=shared, missing=missing)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in self.fields.items())
        return f"ArraySource({len(self)} samples; {fields})"

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, sample: int) -> dict[str, NDArray]:
        """Return one sample, an array per field (a copy); negative indices count from the end.

        Raises:
            IndexError: there is no such sample.
            SampleError: it cannot be read.
        """
        index = sample + len(self) if sample < 0 else sample
        if not 0 <= index < len(self):
            raise IndexError(f"there is no sample {sample}: the source has {len(self)}")
        return {name: _one_row(column, index) for name, column in self._columns.items()}

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return self._num_samples

    @property
    def chunk_samples(self) -> int:
        """Samples that an order should keep together: the longest chunk along axis 0 of all fields; 1 in memory."""
        return min(self._num_samples, max(column.chunk_rows for column in self._columns.values()))

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a sample by name."""
        return self._fields

    @property
    def fingerprint(self) -> str:
        """Hash of the arrays' metadata: equal for a copy at another path, different for other data.

        What `select` returns keeps it: leaving out a field changes no order.
        """
        return self._fingerprint

    @property
    def stats(self) -> StoreStats:
        """What was read from Zarr arrays through this source, all fields together."""
        total = StoreStats()
        for column in self._columns.values():
            total = total + column.stats
        return total

    def decoded_bytes(self, num_samples: int) -> int:
        """Return the bytes that so many samples take in the cache: those of the Zarr fields, decoded."""
        stored = [column for column in self._columns.values() if isinstance(column, StoredColumn)]
        return num_samples * sum(column.row_bytes for column in stored)

    def select(self, fields: Sequence[str]) -> ArraySource:
        """Return a source of some of the fields, over the same arrays, cache and statistics.

        Raises:
            ConfigError: there is no such field.
        """
        unknown = [name for name in fields if name not in self._columns]
        if unknown or not fields:
            raise ConfigError(f"the source has the fields {', '.join(self._columns)}; asked for {list(fields)}")
        chosen = object.__new__(type(self))
        chosen.cache = self.cache
        chosen._columns = {name: self._columns[name] for name in fields}
        chosen._num_samples = self._num_samples
        chosen._fingerprint = self._fingerprint
        chosen._fields = MappingProxyType({name: self._fields[name] for name in fields})
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_fields"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._fields = MappingProxyType({name: column.spec for name, column in self._columns.items()})

    def plan(self, share: Share) -> ArrayPlan:
        """Return how `share` is read: for each field its different chunks, each with the places that it fills.

        Raises:
            IndexError: the share has a sample that the source has not.
        """
        ids = np.asarray(share.ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"a share asks for samples {ids.min()} to {ids.max()}: the source has {len(self)}")
        columns = tuple(column.plan(ids) for column in self._columns.values())
        costs = [column.cost(plan) for column, plan in zip(self._columns.values(), columns, strict=True)]
        num_chunks, read_bytes, decode_bytes = (sum(cost) for cost in zip(*costs, strict=True))
        return ArrayPlan(
            share=share, columns=columns, num_chunks=num_chunks, read_bytes=read_bytes, decode_bytes=decode_bytes
        )

    def hint(self, plan: ArrayPlan) -> None:
        """Ask the system to read the bytes of a plan soon (local files only, best effort)."""
        for column, part in zip(self._columns.values(), plan.columns, strict=True):
            column.hint(part)

    def read(self, plan: ArrayPlan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer, which it reserves. Thread-safe; samples that fail are reported, not raised."""
        into.reserve(self.fields, plan.share.num_samples, {})
        reports = [
            column.read(part, into.arrays(name)[0])
            for (name, column), part in zip(self._columns.items(), plan.columns, strict=True)
        ]
        valid = np.logical_and.reduce([report.valid for report in reports])
        first: dict[int, SampleError] = {}
        for report in reports:
            for error in report.errors:
                first.setdefault(error.sample, error)
        return ReadReport(
            valid=valid,
            fill_chunks=sum(report.fill_chunks for report in reports),
            slow_chunks=sum(report.slow_chunks for report in reports),
            errors=tuple(first.values()),
        )


def _column(name: str, array: Any, *, cache: ChunkCache, missing: str) -> Column:
    if isinstance(array, (str, os.PathLike)):
        if str(array).endswith(".npy"):
            return MemoryColumn(_load_npy(Path(array)), place=f"{name!r} ({array})")
        array = open_array(array, cache=cache)
    if isinstance(array, np.ndarray):
        return MemoryColumn(array, place=f"field {name!r}")
    if not isinstance(array, StoredArray) and hasattr(array, "store_path"):
        array = wrap_zarr(array, cache=cache)
    if isinstance(array, StoredArray):
        return StoredColumn(array, missing=missing)
    raise ConfigError(
        f"field {name!r} is a {type(array).__module__}.{type(array).__name__}; an ArraySource takes NumPy arrays, Zarr "
        "arrays, and paths to Zarr arrays or .npy files (for a tensor pass tensor.numpy())"
    )


def _load_npy(path: Path) -> NDArray:
    try:
        array: NDArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"the file {path} cannot be read as a NumPy array: {error}") from error
    return array


def _fingerprint(columns: Mapping[str, Column]) -> str:
    facts = sorted((name, column.fingerprint) for name, column in columns.items())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _common_length(columns: Mapping[str, Column]) -> int:
    lengths = {name: column.num_rows for name, column in columns.items()}
    listing = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"the arrays of a source share axis 0, their lengths must be equal; {listing}")
    length = next(iter(lengths.values()))
    if length == 0:
        raise ConfigError(f"a source wants at least one sample; {listing}")
    return length


def _one_row(column: Column, index: int) -> NDArray:
    into = np.empty((1, *column.spec.shape), dtype=column.spec.dtype)
    ids: IntArray = np.array([index], dtype=np.int64)
    report = column.read(column.plan(ids), into)
    if report.errors:
        raise report.errors[0]
    row: NDArray = into[0, ...]
    return row
