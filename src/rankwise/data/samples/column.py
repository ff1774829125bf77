"""One field of the samples: rows of a NumPy array or of a Zarr array."""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray
from rankwise.errors import ConfigError

__all__ = ["Column", "MemoryColumn"]

_LOCAL_BYTES = 2**20
_PROBE_BYTES = 2**20


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
        """A mapped file travels to workers by its name, not by its content."""
        return {**vars(self), "_array": _mapped_file(self._array) or self._array}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self._array, _MappedFile):
            self._array = self._array.open()

    def _hash(self) -> str:
        """Shape, dtype, and the bytes of a few rows spread over the array (1 MiB of them)."""
        digest = hashlib.sha256(repr((self._array.shape, self.spec.dtype.str)).encode())
        if self._array.size:
            num_probes = int(np.clip(_PROBE_BYTES // self._row_bytes, 1, self.num_rows))
            probes = np.linspace(0, self.num_rows - 1, num_probes).astype(np.int64)
            digest.update(np.ascontiguousarray(self._array[probes], dtype=self.spec.dtype).tobytes()[:_PROBE_BYTES])
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _MappedFile:
    """Where a memory-mapped array lies."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    fortran: bool

    def open(self) -> NDArray:
        order: Literal["C", "F"] = "F" if self.fortran else "C"
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order)


def _mapped_file(array: NDArray) -> _MappedFile | None:
    """Return how to map it again; None where that is not the same: changed in memory only, no file, or with gaps."""
    mapped: Any = getattr(array, "_mmap", None)
    if not isinstance(array, np.memmap) or mapped is None or array.mode == "c" or not array.filename or not array.size:
        return None
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    # a slice keeps the offset of the whole: count from where the mapping begins
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(mapped, dtype=np.uint8).ctypes.data
    return _MappedFile(
        path=str(array.filename),
        dtype=array.dtype,
        shape=array.shape,
        offset=begin + array.ctypes.data - address,
        fortran=not array.flags.c_contiguous,
    )
