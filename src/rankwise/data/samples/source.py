"""`ArraySource`: a sample is `array[i]` of each field, for Zarr and NumPy arrays; and its loader."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np

from rankwise.data.contract import (
    BaseSource,
    BatchBuffer,
    FieldSpec,
    IntArray,
    Locality,
    NDArray,
    ReadReport,
    Share,
    choose_fields,
)
from rankwise.data.contract.values import short_hash
from rankwise.data.feed import FeedLoader, other_way
from rankwise.data.samples.columns import Column, GroupArrays, MemoryColumn, StoredColumn, make_column
from rankwise.data.store import DEFAULT_CACHE_BYTES, BoxPlan, BoxReader, ChunkCache, ReaderStats, sum_reports
from rankwise.errors import ConfigError, DataError, SampleError

_MOST_TOGETHER_BYTES = 2**18  # of one sample: measured, 192 KiB gain at least a tenth, 768 KiB lose up to a third


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayPlan:
    """Implements `Plan`: how to read one share from every field.

    Attributes:
        share: the share.
        boxes: for each Zarr field, how to read its rows.
        num_chunks: chunks to decode, without those already in the cache.
        read_bytes: encoded bytes to read, as far as known in advance.
        decode_bytes: bytes to decode.
    """

    share: Share
    boxes: Mapping[str, BoxPlan]
    num_chunks: int
    read_bytes: int
    decode_bytes: int

    @property
    def capacity(self) -> Mapping[str, int]:
        """Empty: no field is ragged."""
        return {}


@dataclass(frozen=True, kw_only=True)
class _ColumnsLocality(Locality):
    """Locality of several arrays, each with its own chunk length."""

    stored: tuple[StoredColumn, ...]

    def decoded_bytes(self, num_samples: int) -> int:
        """Return the bytes of `num_samples` neighbouring samples in the cache: the decoded Zarr fields."""
        return sum(column.cached_bytes(num_samples) for column in self.stored)


class ArraySource(BaseSource):
    """Implements `Source` over arrays that share axis 0: sample i has the fields ``{name: array[i]}``.

    Also a map-style dataset: ``len(source)``, ``source[i]``; can be sent to other processes.

    Args:
        arrays: by field name: a NumPy array (also memory-mapped), a tensor in host memory, a Zarr array, a path
            or URL of one, or a path to a ``.npy`` file, which is memory-mapped.
        cache: bytes of decoded chunks to keep in memory (default 256 MiB; 0 = none), or a `ChunkCache` that several
            sources share.
        threads: threads that read and decode; None = the cores that this rank may use.
        missing: how to treat a chunk that is not in the store: "fill" = read it as the array's fill value, as Zarr
            does (counted in the statistics), "error" = report a damaged store.

    Attributes:
        fields: fields of a sample by name.
        num_samples: number of samples.
        fingerprint: hash of the arrays' metadata, and of some rows of NumPy arrays: equal for a copy at another path.
            A source from `select` has the same: leaving out a field does not change the order.

    Raises:
        ConfigError: there are no arrays, their lengths differ, or they are empty or contain objects.
        DataError: there is no array at a path, or it is damaged.
        MissingExtraError: an array is a Zarr array and the package that reads it is not installed.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
        missing: Literal["fill", "error"] = "fill",
    ) -> None:
        if not isinstance(arrays, Mapping) or type(arrays).__module__.split(".")[0] in ("h5py", "xarray"):
            raise ConfigError(
                "an ArraySource needs arrays by field name, such as {'image': array}; got a "
                f"{type(arrays).__module__}.{type(arrays).__name__}: {other_way(arrays)}"
            )
        if not arrays:
            raise ConfigError("an ArraySource needs at least one array, such as {'image': array}; got none")
        if missing not in ("fill", "error"):
            raise ConfigError(f"missing= must be 'fill' or 'error', got {missing!r}")
        # an order with windows soon returns to its chunks: keep each one at its first use
        self.reader = BoxReader(cache=cache, threads=threads, keep="all")
        columns = {name: make_column(name, array, self.reader, missing=missing) for name, array in arrays.items()}
        self.num_samples = _common_length(columns)
        self.fingerprint = short_hash(sorted((name, column.fingerprint) for name, column in columns.items()))
        self._set_columns(columns)

    def _set_columns(self, columns: dict[str, Column]) -> None:
        self._columns = columns
        self._stored = {name: column for name, column in columns.items() if isinstance(column, StoredColumn)}
        self.fields: Mapping[str, FieldSpec] = MappingProxyType({name: each.spec for name, each in columns.items()})

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        fields: Sequence[str] | Mapping[str, str] | None = None,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
        missing: Literal["fill", "error"] = "fill",
    ) -> Self:
        """Open the arrays of a Zarr group.

        Args:
            uri: folder or URL of the group, or a ZIP file with one.
            fields: which of its arrays; a mapping ``{field: array}`` renames them; None = all arrays, by name.
            cache: see the class.
            threads: see the class.
            missing: see the class.

        Raises:
            ConfigError: lengths differ (the message lists them), or an array is empty.
            DataError: there is no group, or it lacks an array (the message lists those it has), or an array is
                damaged or cannot form batches.
            MissingExtraError: the package that reads it is not installed.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields= must be a list of names, got the string {fields!r}: write fields=[{fields!r}]")
        if not isinstance(uri, (str, os.PathLike)):
            raise ConfigError(
                f"ArraySource.open needs the path or URL of a Zarr group; got a {type(uri).__module__}."
                f"{type(uri).__name__}: {other_way(uri)}"
            )
        held = GroupArrays(uri)
        if not held:
            raise DataError(f"the Zarr group {uri} holds no arrays")
        if not isinstance(fields, Mapping):
            fields = {name: name for name in (held if fields is None else fields)}
        arrays = {name: held[array] for name, array in fields.items()}
        return cls(arrays, cache=cache, threads=threads, missing=missing)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, sample: int) -> dict[str, NDArray]:
        """Return one sample, an array per field (a copy); negative indices count from the end.

        Raises:
            IndexError: there is no such sample.
            SampleError: it cannot be read.
            TypeError: the index is no integer.
        """
        try:
            sample = operator.index(sample)
        except TypeError:
            raise TypeError(
                f"a source gives one sample for an integer, got {sample!r}: a SampleLoader makes batches, and a "
                "source of parts of the arrays has a part of the samples"
            ) from None
        index = sample + len(self) if sample < 0 else sample
        if not 0 <= index < len(self):
            raise IndexError(f"there is no sample {sample}: the source has {len(self)}")
        ids: IntArray = np.array([index], dtype=np.int64)
        rows = {name: np.empty((1, *spec.shape), dtype=spec.dtype) for name, spec in self.fields.items()}
        report = self._read(ids, self._boxes(ids), rows)
        if report.errors:
            raise report.errors[0]
        return {name: row[0, ...] for name, row in rows.items()}

    @cached_property
    def locality(self) -> Locality:
        """The longest chunk along axis 0 of all fields (1 in memory), and its decoded size.

        The steps of a window are read together, so that each chunk is read and decoded once. This costs one more copy
        of each sample, which is too much for large samples.
        """
        sizes = [self.fields[name].dtype.itemsize * math.prod(self.fields[name].shape) for name in self._stored]
        return _ColumnsLocality(
            chunk_samples=min(self.num_samples, max(column.chunk_rows for column in self._columns.values())),
            cache_bytes=self.reader.cache.capacity_bytes,
            group_steps=bool(sizes) and sum(sizes) <= _MOST_TOGETHER_BYTES,
            stored=tuple(self._stored.values()),
        )

    @property
    def stateless(self) -> bool:
        """Whether the content depends on the share alone; arrays in memory may be modified between epochs."""
        return not any(isinstance(column, MemoryColumn) for column in self._columns.values())

    @property
    def cache(self) -> ChunkCache:
        """The cache of decoded chunks."""
        return self.reader.cache

    @property
    def stats(self) -> ReaderStats:
        """Counts of what this source read from Zarr arrays, over all fields."""
        return self.reader.stats

    def select(self, fields: Sequence[str]) -> ArraySource:
        """Return a source with some of the fields, over the same arrays, with the same cache and statistics.

        Raises:
            ConfigError: there is no such field.
        """
        names = choose_fields(self._columns, fields)
        chosen = object.__new__(type(self))
        vars(chosen).update(vars(self))
        vars(chosen).pop("locality", None)
        chosen._set_columns({name: self._columns[name] for name in names})
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_stored", "fields", "locality")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_columns(self._columns)

    def plan(self, share: Share) -> ArrayPlan:
        """Return the plan for reading `share`: for each field its distinct chunks, each with the places that it fills.

        Raises:
            IndexError: the share contains a sample that the source does not have.
        """
        ids = np.asarray(share.ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.num_samples):
            raise IndexError(f"a share asks for samples {ids.min()} to {ids.max()}, the source has {self.num_samples}")
        boxes = self._boxes(ids)
        return ArrayPlan(share=share, boxes=boxes, **self.reader.costs(boxes.values()))

    def hint(self, plan: ArrayPlan) -> None:
        """Ask the system to read the bytes of a plan soon (local files only, best effort)."""
        self.reader.hint(list(plan.boxes.values()))

    def read(self, plan: ArrayPlan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer, which this reserves. Thread-safe; failed samples are reported, not raised."""
        into.reserve(self.fields, len(plan.share.ids), {})
        return self._read(plan.share.ids, plan.boxes, {name: into.arrays(name)[0] for name in self._columns})

    def close(self) -> None:
        """Close threads and files. Reading again reopens them."""
        self.reader.close()

    def _boxes(self, ids: IntArray) -> dict[str, BoxPlan]:
        boxes = {}
        for name, column in self._stored.items():
            if (request := column.request(ids)) is not None:
                boxes[name] = self.reader.plan(request)
        return boxes

    def _read(self, ids: IntArray, boxes: Mapping[str, BoxPlan], into: Mapping[str, NDArray]) -> ReadReport:
        """Fill ``into[field][B, *shape]``: all Zarr fields together, so that threads share the work."""
        wanted = []
        for name, column in self._columns.items():
            if isinstance(column, MemoryColumn):
                column.read(ids, into[name])
            elif name in boxes:
                wanted.append((boxes[name], into[name][:, None]))
        reports = self.reader.read(wanted) if wanted else ()
        errors: dict[int, SampleError] = {}
        for (name, plan), report in zip(boxes.items(), reports, strict=True):
            for place, error in self._stored[name].errors(ids, plan, report).items():
                errors.setdefault(place, error)
        return sum_reports(len(ids), errors, reports)


def _common_length(columns: Mapping[str, Column]) -> int:
    lengths = {name: column.num_rows for name, column in columns.items()}
    listing = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
    if len(set(lengths.values())) > 1:
        raise ConfigError(
            f"the arrays of a source must have equal lengths along axis 0; {listing}: leave out those of another "
            "length (ArraySource.open has fields=)"
        )
    length = next(iter(lengths.values()))
    if length == 0:
        raise ConfigError(f"a source needs at least one sample; {listing}")
    return length


class SampleLoader(FeedLoader):
    """The loader for an `ArraySource`, or any other source of samples; its arguments are those of `FeedLoader`."""
