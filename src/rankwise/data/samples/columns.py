"""One field of the samples: rows of a NumPy array or of a Zarr array."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray
from rankwise.data.store import ArrayMeta, BoxError, BoxPlan, BoxReader, BoxReport, BoxRequest, describe_missing
from rankwise.errors import ConfigError, DataError, SampleError

_LOCAL_BYTES = 2**20
_PROBE_BYTES = 2**20


class MemoryColumn:
    """Rows of a NumPy array, memory-mapped ones included.

    Args:
        array: the array; samples lie along axis 0.
        place: its name in messages.

    Attributes:
        place: location of the data, for messages.
        num_rows: number of samples.
        chunk_rows: number of neighbouring samples that are read together, at least 1.
        spec: shape and dtype of a sample.
        fingerprint: hash of the content's metadata.

    Raises:
        ConfigError: it has no axis, or contains objects.
    """

    def __init__(self, array: NDArray, *, place: str) -> None:
        if array.ndim == 0:
            raise ConfigError(f"{place} is a scalar; samples must lie along axis 0 of an array")
        if isinstance(array, np.ma.MaskedArray):
            raise ConfigError(
                f"{place} is a masked array, and a batch has no mask: pass array.filled(value), and where the mask "
                "matters np.ma.getmaskarray(array) as a further field"
            )
        if array.dtype.hasobject or array.dtype.kind == "T":
            raise ConfigError(f"{place} has dtype {array.dtype}: objects cannot form a batch; store numbers")
        self._array = array
        self.place = place
        self.spec = FieldSpec(shape=array.shape[1:], dtype=array.dtype.newbyteorder("="))
        self.num_rows = len(array)
        # Rows in memory need no locality: the order then shuffles single rows.
        self.chunk_rows = max(1, _LOCAL_BYTES // max(1, self._row_bytes)) if isinstance(array, np.memmap) else 1
        self.fingerprint = self._hash()

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self.spec.shape, dtype=np.int64)) * self.spec.dtype.itemsize

    def read(self, ids: IntArray, into: NDArray) -> None:
        """Copy rows.

        Args:
            ids: int64[B].
            into: [B, *shape].
        """
        into[...] = self._array[ids]

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a memory-mapped file by its path, not by its content."""
        return {**vars(self), "_array": _mapping(self._array) or self._array}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self._array, partial):
            self._array = self._array()

    def _hash(self) -> str:
        """Hash shape, dtype, and the bytes of a few rows spread over the array (1 MiB)."""
        digest = hashlib.sha256(repr((self._array.shape, self.spec.dtype.str)).encode())
        if self._array.size:
            num_probes = int(np.clip(_PROBE_BYTES // self._row_bytes, 1, self.num_rows))
            probes = np.linspace(0, self.num_rows - 1, num_probes).astype(np.int64)
            digest.update(np.ascontiguousarray(self._array[probes], dtype=self.spec.dtype).tobytes()[:_PROBE_BYTES])
        return digest.hexdigest()[:16]


def _mapping(array: NDArray) -> partial[NDArray] | None:
    """Return what maps the array again; None if that would differ: changes in memory only, no file, or gaps."""
    mapped: Any = getattr(array, "_mmap", None)
    if not isinstance(array, np.memmap) or mapped is None or array.mode == "c" or not array.filename or not array.size:
        return None
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    # a slice has the offset of the whole array: count from the start of the mapping
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(mapped, dtype=np.uint8).ctypes.data
    offset = begin + array.ctypes.data - address
    layout: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    return partial(np.memmap, str(array.filename), array.dtype, "r", offset, array.shape, layout)


class StoredColumn:
    """One field of the samples, in a Zarr array; sample i is row i.

    Args:
        array: the array.
        reader: provides the sizes of its files.
        missing: "fill" reads chunks that are not in the store as the fill value, "error" refuses them.

    Attributes: those of a `MemoryColumn`, and the array.

    Raises:
        DataError: the size of its first or last file cannot be read.
    """

    def __init__(self, array: ArrayMeta, reader: BoxReader, *, missing: str) -> None:
        self.array = array
        self._missing = missing
        self.place = array.place
        self.num_rows = array.shape[0]
        self.chunk_rows = array.chunks[0]
        self.spec = FieldSpec(shape=array.shape[1:], dtype=array.dtype)
        self.fingerprint = _fingerprint(array, reader)

    def cached_bytes(self, num_rows: int) -> int:
        """Return the bytes of neighbouring rows in the cache, which keeps whole chunks."""
        across = (-(-size // chunk) for size, chunk in zip(self.array.shape[1:], self.array.chunks[1:], strict=True))
        return -(-num_rows // self.chunk_rows) * math.prod(across) * self.array.chunk_bytes

    def request(self, ids: IntArray) -> BoxRequest | None:
        """Return the request to the engine for some rows; None if rows have no elements.

        Args:
            ids: int64[B].
        """
        if 0 in self.spec.shape:
            return None
        starts = np.zeros((len(ids), self.array.ndim), dtype=np.int64)
        starts[:, 0] = ids
        return BoxRequest(
            arrays=(self.array,),
            which=np.zeros(len(ids), dtype=np.int64),
            starts=starts,
            shape=(1, *self.spec.shape),
            dtype=self.spec.dtype,
        )

    def errors(self, ids: IntArray, plan: BoxPlan, report: BoxReport) -> dict[int, SampleError]:
        """Return the errors of rows, by their place in the batch.

        Args:
            ids: int64[B].
            plan: the plan by which they were read.
            report: the report of that read.
        """
        found: dict[int, SampleError] = {}
        for error in report.errors:
            found[error.box] = _sample_error(int(ids[error.box]), error)
        if self._missing == "error":
            for box in np.flatnonzero(report.missing_boxes).tolist():
                found.setdefault(box, _sample_error(int(ids[box]), self._incomplete(box, plan)))
        return found

    def _incomplete(self, box: int, plan: BoxPlan) -> BoxError:
        """Return an error that names a chunk which a row lacks, as far as planning knew."""
        return BoxError(
            box=box,
            place=self.place,
            error=DataError(
                f"{describe_missing(plan, box)} and would be read as the fill value: copy the whole store or allow "
                "this by missing='fill'"
            ),
        )


Column: TypeAlias = MemoryColumn | StoredColumn


def _sample_error(sample: int, error: BoxError) -> SampleError:
    made = SampleError(
        f"sample {sample} cannot be read: {error.error}", sample=sample, place=error.place, damage=error.damage
    )
    made.__cause__ = error.error
    return made


def _fingerprint(array: ArrayMeta, reader: BoxReader) -> str:
    """Hash shape, dtype, grid, and the sizes of the first and last file: equal for a copy at another path."""
    sizes = []
    if 0 not in array.shape:
        last = tuple((size - 1) // file for size, file in zip(array.shape, array.files, strict=True))
        sizes = [reader.stored_bytes(array, coords) for coords in ((0,) * array.ndim, last)]
    facts = [array.shape, array.dtype.str, array.chunks, array.files if array.sharded else None, sizes]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
