"""`ChunkTasks`: chunks to read, decode and place, as tables for a compiled loop; `Spread`: those of dense rows."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, DType, FloatArray, IntArray, NDArray
from rankwise.errors import ConfigError

# When this package was read from its files; they may have other contents later.
IMPORTED_S = time.time()

# The tables in the order of their addresses in the job of the compiled loop.
LAYOUT_FIELDS = ("size", "low", "high", "src_first", "extents", "src_strides", "strides")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Start and strides of regions, over as few axes as possible.

    Axes that are contiguous in the chunk and in the output, for every target, are merged into one; axes of extent 1 are
    removed. A axes remain, at least one.

    Attributes:
        size: int64[K], bytes of each decoded chunk.
        low: int64[K], first byte of each chunk that any target needs.
        high: int64[K], end of the last byte that any target needs; both 0 if there is no target.
        src_first: int64[T], first byte of each region in its chunk.
        extents: int64[T, A], extents of each region.
        src_strides: int64[K, A], bytes between neighbouring elements of a chunk along each axis.
        strides: int64[A], elements between neighbours along each axis of the output; 1 for the last.
    """

    size: IntArray
    low: IntArray
    high: IntArray
    src_first: IntArray
    extents: IntArray
    src_strides: IntArray
    strides: IntArray

    @classmethod
    def of(cls, tasks: ChunkTasks) -> Self:
        """Return the layout of the regions of some tasks."""
        itemsize = tasks.fill.itemsize
        # From the last axis to the first: the number of elements between two neighbours
        sizes = np.cumprod(tasks.chunk_shape[:, ::-1], axis=1)
        strides = np.ones_like(tasks.chunk_shape)
        strides[:, :-1] = sizes[:, -2::-1]
        of_targets = np.repeat(strides, np.diff(tasks.bounds), axis=0)
        first = np.einsum("ij,ij->i", tasks.src_start, of_targets) * itemsize
        end = first + (np.einsum("ij,ij->i", tasks.extent - 1, of_targets) + 1) * itemsize
        low, high = np.zeros((2, len(tasks.chunk_shape)), dtype=np.int64)
        some = np.flatnonzero(np.diff(tasks.bounds))  # `reduceat` knows no empty ranges
        if len(some):
            low[some] = np.minimum.reduceat(first, tasks.bounds[some])
            high[some] = np.maximum.reduceat(end, tasks.bounds[some])
        axes, extents = _merged(tasks.extent, of_targets, tasks.dst_strides)
        return cls(
            size=sizes[:, -1] * itemsize,
            low=low,
            high=high,
            src_first=first,
            extents=extents,
            src_strides=np.ascontiguousarray(strides[:, axes] * itemsize),
            strides=np.ascontiguousarray(tasks.dst_strides[axes]),
        )


def _merged(extent: IntArray, strides: IntArray, dst_strides: IntArray) -> tuple[list[int], IntArray]:
    """Return which axes have strides after merging, and the extents along these."""
    axes = [extent.shape[1] - 1]
    extents = [extent[:, -1]]
    for axis in range(extent.shape[1] - 2, -1, -1):
        if (extent[:, axis] == 1).all():
            continue
        inner, along = axes[0], extents[0]
        follows: BoolArray = strides[:, axis] == along * strides[:, inner]
        if (follows & (dst_strides[axis] == along * dst_strides[inner])).all():
            extents[0] = along * extent[:, axis]
        else:
            axes.insert(0, axis)
            extents.insert(0, extent[:, axis])
    return axes, np.ascontiguousarray(np.stack(extents, axis=1))


KIND_RAW, KIND_ZSTD, KIND_BLOSC, KIND_LZ4, KIND_FILL, KIND_DECODED = range(6)

_INT64 = np.dtype(np.int64)

# The tables in the order of their addresses in the job of the compiled loop.
TASK_FIELDS = (
    "fd", "offset", "length", "encoded", "decoded", "keep", "kind", "bounds", "dst_start",
    "scale", "offset_", "status", "detail", "unfit",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTasks:
    """K chunks of one stored dtype whose elements go to T places of one output.

    All tables are C-contiguous. An address must be valid at least as long as the tasks exist.

    Attributes:
        fd: int64[K], file to read each chunk from; -1 = none (see `encoded`, `decoded`; also for a missing chunk).
        offset: int64[K], first byte of the encoded chunk in its file.
        length: int64[K], encoded bytes.
        encoded: int64[K], address of the encoded bytes if they are already in memory, else 0.
        decoded: int64[K], address of the decoded chunk if it was decoded before, else 0.
        keep: int64[K], address of a buffer of one chunk's size that receives the whole decoded chunk, else 0.
        kind: int64[K], how the chunk is encoded: one of ``KIND_*``; `KIND_FILL` is a missing chunk,
            `KIND_DECODED` one that zarr-python decodes (see `decoded`).
        fill: stored dtype [1] or [K], value of the elements of a missing chunk; its dtype is the stored dtype.
        chunk_shape: int64[K, D], shape of the stored chunk.
        bounds: int64[K + 1], the targets of chunk k are ``bounds[k]`` to ``bounds[k + 1]``.
        src_start: int64[T, D], start of the region of each target inside the chunk.
        extent: int64[T, D], extent of the region, all at least 1.
        dst_start: int64[T], first element of the region in the flat output.
        dst_strides: int64[D], elements between neighbours along each axis of the output; 1 for the last axis.
        scale: float64[T] with `offset_`, or None: elements x become ``x * scale + offset_``.
        offset_: float64[T] or None.
        status: int32[K], written: 0 for success, else a code of `rankwise.data.store.decode.tasks`.
        detail: int64[K], written: details of the status (errno, bytes read, decoded bytes, ...).
        unfit: bool[T], written: True if a value does not fit the output's integer dtype. For the status `OUT_OF_RANGE`
            only these targets of the chunk are invalid; for other failures, all targets of the chunk.
        reach: largest element of the flat output that any target writes; -1 without targets.
        layout: strides of the regions, derived from the tables.
        addresses: addresses of the tables of the tasks and of the layout, 0 for None.

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
    status: npt.NDArray[np.int32] = field(init=False)
    detail: IntArray = field(init=False)
    unfit: BoolArray = field(init=False)
    reach: int = field(init=False)
    layout: Layout = field(init=False, repr=False)
    addresses: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_tables()
        made: dict[str, object] = {
            "status": np.zeros(len(self.fd), dtype=np.int32),
            "detail": np.zeros(len(self.fd), dtype=np.int64),
            "unfit": np.zeros(len(self.dst_start), dtype=np.bool_),
            "reach": self._checked_reach(),
            "layout": Layout.of(self),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)
        addresses = np.zeros(len(TASK_FIELDS) + len(LAYOUT_FIELDS), dtype=np.int64)
        for at, name in enumerate(TASK_FIELDS + LAYOUT_FIELDS):
            table = getattr(self if at < len(TASK_FIELDS) else self.layout, name)
            addresses[at] = 0 if table is None else address_of(table)
        object.__setattr__(self, "addresses", addresses)

    def __len__(self) -> int:
        return len(self.fd)

    def _check_tables(self) -> None:
        chunks, targets, axes = len(self.fd), len(self.dst_start), len(self.dst_strides)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(TASK_FIELDS[:7], (chunks,))
        shapes |= {"fill": (1 if len(self.fill) == 1 else chunks,), "chunk_shape": (chunks, axes)}
        shapes |= {"bounds": (chunks + 1,), "dst_start": (targets,), "dst_strides": (axes,)}
        shapes |= dict.fromkeys(("src_start", "extent"), (targets, axes))
        if self.scale is not None or self.offset_ is not None:
            shapes |= dict.fromkeys(("scale", "offset_"), (targets,))
        dtypes = {"fill": self.fill.dtype, "scale": np.dtype(np.float64), "offset_": np.dtype(np.float64)}
        for name, shape in shapes.items():
            table, dtype = getattr(self, name), dtypes.get(name, _INT64)
            if table is None or table.shape != shape or table.dtype != dtype or not table.flags.c_contiguous:
                got = "None" if table is None else f"{table.dtype}{list(table.shape)}"
                raise ValueError(f"table {name} must be {dtype}{list(shape)}, C-contiguous; got {got}")

    def _checked_reach(self) -> int:
        """Return the last element that is written. Everything that a compiled loop cannot check is checked here."""
        per_chunk = np.diff(self.bounds)
        owner = np.repeat(np.arange(len(self)), np.maximum(per_chunk, 0))
        if self.bounds[0] != 0 or len(owner) != len(self.dst_start) or (per_chunk < 0).any():
            raise ValueError(f"bounds of {len(self)} chunks do not cut {len(self.dst_start)} targets")
        ends = self.src_start + self.extent
        if (self.src_start < 0).any() or (self.extent < 1).any() or (ends > self.chunk_shape[owner]).any():
            raise ValueError("a target's region leaves its chunk, or is empty")
        if self.dst_strides[-1] != 1 or (self.dst_strides < 0).any() or (self.dst_start < 0).any():
            raise ValueError("targets need a start >= 0 and strides >= 0, the last stride 1")
        reach = self.dst_start.copy()
        for axis, stride in enumerate(self.dst_strides.tolist()):  # NumPy multiplies matrices of integers slowly
            reach += (self.extent[:, axis] - 1) * stride
        return int(reach.max(initial=-1))


def address_of(array: NDArray) -> int:
    """Return the address of an array's first byte. Faster than `ndarray.ctypes`."""
    return int(array.__array_interface__["data"][0])


def memory_at(address: int, num_bytes: int) -> NDArray:
    """Return the bytes at an address as an array, without copying."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


_NAMES = (
    # addresses of tables
    *TASK_FIELDS, *LAYOUT_FIELDS,
    # set before each run
    "first", "last", "axes", "dst_unit", "col_unit", "out", "plane", "fill_rows", "fill_step",
    "read_buffer", "read_bytes", "decode_buffer", "context", "compressors", "stage",
    # set before runs that write sparse rows to dense ones
    "spread", "columns", "column_bytes", "rows", "row_lengths", "tables", "places", "num_cols", "width",
    "marks", "blank",
    # written and read by the loop for each target
    "its_places", "its_num_cols",
    # written and read by the loop for each chunk
    "source", "strided", "blosc_bytes",
)  # fmt: skip

# Byte offset of each slot, by name.
SLOTS = {name: 8 * index for index, name in enumerate(_NAMES)}
NUM_SLOTS = len(_NAMES)

OK = 0
CUT_SHORT = 1  # the file ends inside the chunk; detail: bytes read
OS_ERROR = 2  # detail: errno
BAD_FRAME = 3  # the decoder rejects the bytes; detail: its return value
WRONG_SIZE = 4  # decoded size differs from that of a chunk; detail: decoded bytes, -1 if unknown
WRONG_LENGTH = 5  # encoded size differs from that in the frame (or the shape, for raw chunks); detail: that size
OUT_OF_RANGE = 6  # a value does not fit the output's integer dtype
UNKNOWN_COMPRESSOR = 7  # inside a Blosc frame; detail: its number
TOO_LONG = 8  # more encoded bytes than any encoder makes of a chunk; detail: the maximum
UNKNOWN_KIND = 9  # detail: the kind

_BLOSC_COMPRESSORS = ("blosclz", "lz4", "snappy", "zlib", "zstd")


def is_damage(status: int) -> bool:
    """Whether the content is damaged; False for storage errors, which may be temporary, and for our own limits."""
    return status in (CUT_SHORT, BAD_FRAME, WRONG_SIZE, WRONG_LENGTH, TOO_LONG)


def describe(status: int, detail: int, *, length: int, chunk_bytes: int) -> str:
    """Return what went wrong with a chunk, in words that follow its place."""
    size = "another number of" if detail < 0 else f"{detail}"
    known = 0 <= detail < len(_BLOSC_COMPRESSORS)
    compressor = _BLOSC_COMPRESSORS[detail] if known else f"compressor {detail} of Blosc"
    return {
        OK: "is well",
        CUT_SHORT: f"is truncated: {detail} of {length} bytes could be read",
        OS_ERROR: f"cannot be read: {os.strerror(detail) if status == OS_ERROR else ''} (errno {detail})",
        BAD_FRAME: f"is damaged: its decoder rejects its {length} bytes (code {detail})",
        WRONG_SIZE: f"is damaged: it decodes to {size} bytes, but a chunk has {chunk_bytes}",
        WRONG_LENGTH: f"is damaged: it has {length} bytes, but should have {size}",
        OUT_OF_RANGE: "holds values that do not fit the requested dtype: choose a wider dtype",
        UNKNOWN_COMPRESSOR: f"is compressed with {compressor}, which this build of numcodecs does not know",
        TOO_LONG: f"is damaged: it has {length} bytes, but no encoder needs more than {detail} for a chunk",
        UNKNOWN_KIND: f"has an unknown kind {detail}",
    }.get(status, f"failed with the unknown status {status} (detail {detail})")


OUTSIDE, TWICE = 1, 2  # of a row: it has an invalid column number, or one column twice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """Maps the elements of a request with runs to columns of dense rows, one row for each run.

    Attributes:
        columns: uint16 or int32 [runs.num_rows], the column of each element of the packed output; undefined for runs
            that could not be read.
        num_cols: columns of the sparse rows, fewer than 2^31: one number for all arrays of the request, or one for
            each.
        places: for each of these int32[num_cols], the target of a column in a dense row, `width` = drop it; None =
            its own number.
        width: elements of a dense row, at least 1.

    Raises:
        ConfigError: the attributes do not fit together.
    """

    columns: NDArray
    num_cols: tuple[int, ...]
    places: tuple[npt.NDArray[np.int32], ...] | None
    width: int

    def __post_init__(self) -> None:
        if (
            self.columns.dtype not in (np.uint16, np.int32)
            or self.columns.ndim != 1
            or not self.columns.flags.c_contiguous
        ):
            raise ConfigError(
                f"columns must be uint16 or int32 along one axis, C-contiguous; got {self.columns.dtype}"
                f"{list(self.columns.shape)}"
            )
        tables = [None] * len(self.num_cols) if self.places is None else list(self.places)
        fits = 1 <= self.width < 2**31 and len(tables) == len(self.num_cols) >= 1
        if not (fits and all(map(self._fits, self.num_cols, tables))):
            raise ConfigError(
                f"places of {self.num_cols} columns must be int32, one each, from 0 to {self.width}, the width of "
                "dense rows; without places there is one place for each column"
            )

    def _fits(self, num_cols: int, places: npt.NDArray[np.int32] | None) -> bool:
        if places is None:
            return num_cols == self.width
        if places.dtype != np.int32 or places.shape != (num_cols,) or not places.flags.c_contiguous:
            return False
        return num_cols == 0 or bool(0 <= places.min() <= places.max() <= self.width)


class DenseRows:
    """Tasks with one axis whose targets are pieces of sparse rows; each piece goes to its dense row.

    Args:
        spread: the columns of the elements; element p of the flat output has column ``spread.columns[p]``.
        rows: int64[T], the row of each target.
        lengths: int64[B], elements of each row.
        tables: int64[T], index of the table of `spread` for each target.
        marks: uint8[T], written: `OUTSIDE` if an invalid column was skipped, `TWICE` if a column may
            appear twice.

    Attributes:
        settings: arguments of the compiled code, by job slot.

    Raises:
        ValueError: tables do not fit together: a bug in the planner, not damage.
    """

    def __init__(
        self, *, spread: Spread, rows: IntArray, lengths: IntArray, tables: IntArray, marks: npt.NDArray[np.uint8]
    ) -> None:
        self.spread, self.rows, self.lengths, self.marks = spread, rows, lengths, marks
        if not len(rows) == len(tables) == len(marks):
            raise ValueError("dense rows need a row, a table and a mark for each target")
        for name, numbers, end in (("rows", rows, len(lengths)), ("tables", tables, len(spread.num_cols))):
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < end:
                raise ValueError(f"{name} of dense rows must be numbers from 0 to {end - 1}")
        # as narrow as possible: they share the L1 cache with the row
        tables_of_places = [table.astype(self.place_dtype) for table in spread.places or ()]
        addresses = [address_of(table) for table in tables_of_places] or [0] * len(spread.num_cols)
        num_cols, places = np.array(spread.num_cols, dtype=np.int64), np.array(addresses, dtype=np.int64)
        # in the order of targets: rows come in any order, and a random lookup waits for memory
        row_lengths = lengths[rows]
        self._held = tables, num_cols, places, row_lengths, tables_of_places  # compiled code has their addresses only
        self.settings = {
            "columns": address_of(spread.columns), "column_bytes": spread.columns.itemsize, "width": spread.width,
            "rows": address_of(rows), "row_lengths": address_of(row_lengths), "tables": address_of(tables),
            "num_cols": address_of(num_cols), "places": address_of(places), "marks": address_of(marks),
        }  # fmt: skip

    @property
    def place_dtype(self) -> DType:
        """Dtype of the tables of places in compiled code."""
        return np.dtype(np.uint16 if self.spread.width < 2**16 else np.int32)

    def check(self, tasks: ChunkTasks, out: NDArray) -> None:
        """Refuse tasks that would access invalid memory.

        Raises:
            ValueError: tasks or output do not fit the tables: a bug in the planner, not damage.
        """
        wanted = (len(self.lengths), self.spread.width)
        if out.shape != wanted or not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError(f"dense rows need a C-contiguous and writeable output of {wanted}, got {out.shape}")
        if tasks.reach >= len(self.spread.columns):
            raise ValueError(f"targets reach element {tasks.reach}, but there are {len(self.spread.columns)} columns")
        if len(tasks.dst_strides) != 1 or tasks.scale is not None or len(self.rows) != len(tasks.dst_start):
            raise ValueError("dense rows need unscaled targets of one axis, and a row for each")
