"""`ChunkTasks`: what is to be read, decoded and placed, as flat tables that a compiled loop walks without Python."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, FloatArray, IntArray, NDArray
from rankwise.data.store.decode.layout import LAYOUT_FIELDS, Layout

__all__ = [
    "KIND_BLOSC",
    "KIND_FILL",
    "KIND_LZ4",
    "KIND_RAW",
    "KIND_ZSTD",
    "TASK_FIELDS",
    "ChunkTasks",
    "address_of",
    "memory_at",
]

KIND_RAW, KIND_ZSTD, KIND_BLOSC, KIND_LZ4, KIND_FILL = range(5)

# The tables in the order in which the compiled loop finds their addresses.
TASK_FIELDS = (
    "fd", "offset", "length", "encoded", "decoded", "keep", "kind", "bounds", "dst_start",
    "scale", "offset_", "status", "detail", "unfit",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTasks:
    """K chunks of one stored dtype whose elements go to T places of one output.

    All tables are C-contiguous. "Address" is that of memory that lives at least as long as the tasks.

    Attributes:
        fd: int64[K], file to read each chunk from; -1 = none (see `encoded`, `decoded`, or a missing chunk).
        offset: int64[K], first byte of the encoded chunk in its file.
        length: int64[K], encoded bytes.
        encoded: int64[K], address of the encoded bytes where they lie in memory already, else 0.
        decoded: int64[K], address of the whole decoded chunk where it was decoded before, else 0.
        keep: int64[K], address of a buffer of one chunk's bytes that receives the whole decoded chunk, else 0.
        kind: int64[K], how the chunk is encoded: one of ``KIND_*``; `KIND_FILL` is a missing chunk.
        fill: stored dtype [1] or [K], what the elements of a missing chunk are; its dtype is the stored dtype.
        chunk_shape: int64[K, D], shape of the stored chunk.
        bounds: int64[K + 1], the targets of chunk k are those from ``bounds[k]`` to ``bounds[k + 1]``.
        src_start: int64[T, D], where the region of each target begins inside the chunk.
        extent: int64[T, D], how far it reaches, all at least 1.
        dst_start: int64[T], element of the flat output where the region begins.
        dst_strides: int64[D], elements from one to the next along each axis of the output; 1 for the last axis.
        scale: float64[T] with `offset_`, or None: elements x become ``x * scale + offset_``.
        offset_: float64[T] or None.
        status: int32[K], written: 0 where all went well, else a code of `rankwise.data.store.decode.status`.
        detail: int64[K], written: what goes with the status (errno, bytes that came, decoded bytes, ...).
        unfit: bool[T], written: True where a value does not fit the output's integer dtype. Only such targets of a
            chunk with the status `OUT_OF_RANGE` are spoiled; of all other failures, every target of the chunk.
        reach: largest element of the flat output that any target touches; -1 without targets.
        layout: how the regions step, worked out from the tables.
        addresses: where the tables of the tasks and of the layout lie, 0 for None.

    Raises:
        ValueError: tables do not fit together, or a region leaves its chunk: a bug in the planner, not damage.
    """

    fd: IntArray
    offset: IntArray
    length: IntArray
    encoded: IntArray
    decoded: IntArray
    keep: IntArray
    kind: IntArray
    fill: NDArray
    chunk_shape: IntArray
    bounds: IntArray
    src_start: IntArray
    extent: IntArray
    dst_start: IntArray
    dst_strides: IntArray
    scale: FloatArray | None = None
    offset_: FloatArray | None = None
    status: npt.NDArray[np.int32]
    detail: IntArray
    unfit: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    reach: int = field(init=False)
    layout: Layout = field(init=False, repr=False)
    addresses: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.unfit) == 0:
            object.__setattr__(self, "unfit", np.zeros(len(self.dst_start), dtype=np.bool_))
        self._check_tables()
        object.__setattr__(self, "reach", self._checked_reach())
        object.__setattr__(self, "layout", self._laid_out())
        tables = [getattr(self, name) for name in TASK_FIELDS]
        tables += [getattr(self.layout, name) for name in LAYOUT_FIELDS]
        addresses = [0 if table is None else address_of(table) for table in tables]
        object.__setattr__(self, "addresses", np.array(addresses, dtype=np.int64))

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.fd)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.dst_strides)

    @property
    def scaled(self) -> bool:
        """Whether elements are scaled on their way."""
        return self.scale is not None

    def _check_tables(self) -> None:
        chunks, targets, axes = len(self.fd), len(self.dst_start), len(self.dst_strides)
        wanted: dict[str, tuple[tuple[int, ...], Any]] = dict.fromkeys(TASK_FIELDS[:7], ((chunks,), np.int64))
        wanted |= {
            "detail": ((chunks,), np.int64),
            "status": ((chunks,), np.int32),
            "bounds": ((chunks + 1,), np.int64),
        }
        wanted |= {"chunk_shape": ((chunks, axes), np.int64), "dst_strides": ((axes,), np.int64)}
        wanted |= {"src_start": ((targets, axes), np.int64), "extent": ((targets, axes), np.int64)}
        wanted |= {"dst_start": ((targets,), np.int64), "unfit": ((targets,), np.bool_)}
        wanted |= {"fill": ((1 if len(self.fill) == 1 else chunks,), self.fill.dtype)}
        if self.scale is not None or self.offset_ is not None:
            wanted |= {"scale": ((targets,), np.float64), "offset_": ((targets,), np.float64)}
        for name, (shape, dtype) in wanted.items():
            _check_table(name, getattr(self, name), shape, dtype)

    def _laid_out(self) -> Layout:
        return Layout.of(
            chunk_shape=self.chunk_shape,
            bounds=self.bounds,
            src_start=self.src_start,
            extent=self.extent,
            dst_strides=self.dst_strides,
            itemsize=self.fill.itemsize,
        )

    def _checked_reach(self) -> int:
        """Return the last element that is written. What a compiled loop must not find out is found out here."""
        per_chunk = np.diff(self.bounds)
        owner = np.repeat(np.arange(len(self)), np.maximum(per_chunk, 0))
        if self.bounds[0] != 0 or len(owner) != len(self.dst_start) or (per_chunk < 0).any():
            raise ValueError(f"bounds of {len(self)} chunks do not cut {len(self.dst_start)} targets")
        ends = self.src_start + self.extent
        if (self.src_start < 0).any() or (self.extent < 1).any() or (ends > self.chunk_shape[owner]).any():
            raise ValueError("a target's region leaves its chunk, or is empty")
        if self.dst_strides[-1] != 1 or (self.dst_strides < 0).any() or (self.dst_start < 0).any():
            raise ValueError("targets want a start >= 0 and strides >= 0, the last of them 1")
        return int((self.dst_start + (self.extent - 1) @ self.dst_strides).max(initial=-1))


def address_of(array: NDArray) -> int:
    """Return where the first byte of an array lies. Quicker than `ndarray.ctypes`."""
    return int(array.__array_interface__["data"][0])


def memory_at(address: int, num_bytes: int) -> NDArray:
    """Return the bytes at an address as an array, without a copy."""
    view: NDArray = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
    return view


def _check_table(name: str, table: NDArray | None, shape: tuple[int, ...], dtype: Any) -> None:
    if table is None or table.shape != shape or table.dtype != dtype or not table.flags.c_contiguous:
        got = "None" if table is None else f"{table.dtype}{list(table.shape)}"
        raise ValueError(f"table {name} wants {np.dtype(dtype)}{list(shape)}, C-contiguous; got {got}")
