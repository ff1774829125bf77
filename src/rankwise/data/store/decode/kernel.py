"""`KernelDecoder`: processes chunks in compiled code, without the interpreter, with a cast loop for each dtype pair."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rankwise._process.forks import forks_wait
from rankwise.data.contract import DType, NDArray
from rankwise.data.store.boxes import is_float
from rankwise.data.store.decode.decoder import Scratch, ThreadsDecoder, check_run
from rankwise.data.store.decode.tasks import KIND_FILL, SLOTS, ChunkTasks, DenseRows, address_of, memory_at

if TYPE_CHECKING:
    from rankwise.data.store.decode.planes import PlaneLoop

_SLACK = 2**16
_CAST = "?bBhHiIlLqQefd"  # characters of the dtypes that loops cast


class KernelDecoder:
    """Processes chunks in one compiled loop without the interpreter's lock. Thread-safe.

    The chunk loop is compiled once, and an element loop for each pair of dtypes on first use. Unsupported pairs
    (complex numbers to wider ones, other byte orders) go to `ThreadsDecoder`.

    Attributes:
        num_compiled: functions compiled so far.
        num_loaded: compiled functions loaded from disk so far.

    Raises:
        SymbolsMissingError: numcodecs does not export its decoders.
        ImportError: numba or numcodecs is not installed.
    """

    name = "kernel"

    def __init__(self) -> None:
        from rankwise.data.store.decode import symbols

        symbols.register()  # before any compiled code is loaded: an unknown symbol would end the process
        self._symbols = symbols
        self._compressors = symbols.known_compressors()
        self._others = ThreadsDecoder()
        self._planes: dict[tuple[DType, DType, bool], int] = {}
        self._addresses: dict[str, int] = {}
        self.num_compiled = self.num_loaded = 0
        from rankwise.data.store.decode.chunk_loop import run_chunks
        from rankwise.data.store.decode.machine import types

        address = self._compiled(run_chunks, "run_chunks", types.int64(types.int64))
        # Calls of such a function release the interpreter's lock
        self._run: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)

    def run(self, tasks: ChunkTasks, first: int, last: int, out: NDArray, scratch: Scratch) -> None:
        """Process the chunks from `first` to `last`; see `ThreadsDecoder.run`."""
        plane = self._plane(tasks.fill.dtype, out.dtype, scaled=tasks.scale is not None)
        if plane == 0:
            self._others.run(tasks, first, last, out, scratch)
            return
        check_run(tasks, first, last, out)
        if first < last:
            self._run_job(tasks, first, last, out, scratch, plane=plane, spread=0)

    def spread(  # noqa: PLR0917
        self, tasks: ChunkTasks, dense: DenseRows, first: int, last: int, out: NDArray, scratch: Scratch
    ) -> None:
        """Process the chunks from `first` to `last`, into dense rows, and write the results to the statuses and marks.

        A row filled by one target is written completely; a row of several pieces must be zero before. Other than for
        `run`, the stored dtype `is_castable` to that of the output, which is [B, width] of elements of 1, 2, 4 or 8
        bytes; the columns in `dense` were decoded before.

        Raises:
            ValueError: tables do not fit together: a bug in the planner, not damage.
        """
        dense.check(tasks, out)
        if first == last:
            return
        plane = 0
        if tasks.fill.dtype != out.dtype:
            plane = self._plane(tasks.fill.dtype, out.dtype, scaled=False)
            most = tasks.layout.extents[int(tasks.bounds[first]) : int(tasks.bounds[last])].max(initial=0)
            scratch.reserve(stage=int(most) * out.itemsize)
        scratch.reserve(blank=(dense.spread.width + 1) * out.itemsize)
        settings = {
            "plane": plane, "stage": address_of(scratch.stage), "blank": address_of(scratch.blank),
            "spread": self._spread_loop(out.itemsize, dense.spread.columns.dtype, dense.place_dtype),
        }  # fmt: skip
        self._run_job(tasks, first, last, out, scratch, **settings, **dense.settings)

    def _run_job(
        self, tasks: ChunkTasks, first: int, last: int, out: NDArray, scratch: Scratch, **settings: int
    ) -> None:
        largest = int(tasks.layout.size[first:last].max())
        # No encoder makes more bytes of a chunk: a longer one is damaged, and gets no memory
        most = 2 * largest + _SLACK
        longest = int(tasks.length[first:last].max(where=tasks.encoded[first:last] == 0, initial=0))
        scratch.reserve(read=min(longest, most), decode=largest)
        scratch.ensure_context(self._symbols.make_zstd_context, self._symbols.free_zstd_context)
        fill_rows, fill_step = _fill_rows(tasks, first, last, scratch)
        copied = tasks.fill.dtype == out.dtype and tasks.scale is None
        settings |= {
            "col_unit": out.itemsize if copied else 1,
            "first": first, "last": last, "axes": len(tasks.layout.strides), "dst_unit": out.itemsize,
            "out": address_of(out), "fill_rows": fill_rows, "fill_step": fill_step,
            "read_buffer": address_of(scratch.read), "read_bytes": len(scratch.read),
            "decode_buffer": address_of(scratch.decode),
            "context": scratch.context, "compressors": self._compressors,
        }  # fmt: skip
        scratch.job[: len(tasks.addresses)] = tasks.addresses
        for slot, value in settings.items():
            scratch.job[SLOTS[slot] // 8] = value
        self._run(address_of(scratch.job))

    def _plane(self, stored: DType, wanted: DType, *, scaled: bool) -> int:
        """Return the address of the loop for a pair of dtypes, 0 if there is none."""
        key = stored, wanted, scaled
        if key not in self._planes:
            unchanged = stored == wanted and not scaled
            name = "copied" if unchanged else f"{stored.name}_to_{wanted.name}{'_scaled' if scaled else ''}"
            castable = is_castable(stored, wanted, scaled=scaled)
            self._planes[key] = self._loop(name, lambda: plane_for(stored, wanted, scaled=scaled)) if castable else 0
        return self._planes[key]

    def _spread_loop(self, size: int, column: DType, place: DType) -> int:
        def make() -> PlaneLoop:
            from rankwise.data.store.decode.planes import spread_loop

            return spread_loop(*(getattr(np, name) for name in (f"uint{8 * size}", column.name, place.name)))

        return self._loop(f"spread_{size}_{column.name}_{place.name}", make)

    def _loop(self, name: str, make: Callable[[], PlaneLoop]) -> int:
        """Return the address of a compiled loop, making it if necessary."""
        with forks_wait:
            if name not in self._addresses:
                from rankwise.data.store.decode.planes import PLANE_SIGNATURE

                self._addresses[name] = self._compiled(make(), f"plane_{name}", PLANE_SIGNATURE)
            return self._addresses[name]

    def _compiled(self, function: Callable[..., int], name: str, signature: object) -> int:
        from rankwise.data.store.decode.machine import compiled_address

        address, was_on_disk = compiled_address(function, name, signature)
        self.num_loaded += was_on_disk
        self.num_compiled += not was_on_disk
        return address


def _fill_rows(tasks: ChunkTasks, first: int, last: int, scratch: Scratch) -> tuple[int, int]:
    """Return the address of rows with the fill values of missing chunks, and the distance between chunks in bytes."""
    missing = first + np.flatnonzero(tasks.kind[first:last] == KIND_FILL)
    if len(missing) == 0:
        return 0, 0
    cols = int(tasks.layout.extents[:, -1].max(initial=1))
    fills = tasks.fill if len(tasks.fill) == 1 else tasks.fill[first:last]
    scratch.rows = np.repeat(fills, cols)
    for chunk in missing[tasks.keep[missing] != 0].tolist():
        kept = memory_at(int(tasks.keep[chunk]), int(tasks.layout.size[chunk]))
        kept.view(tasks.fill.dtype)[...] = fills[chunk - first if len(fills) > 1 else 0]
    return address_of(scratch.rows), cols * tasks.fill.itemsize if len(fills) > 1 else 0


# Either reads, decodes and places chunks; one serves all threads.
Decoder: TypeAlias = KernelDecoder | ThreadsDecoder


def is_castable(stored: DType, wanted: DType, *, scaled: bool) -> bool:
    """Whether there is a loop for a pair of dtypes; NumPy casts all others."""
    if stored.hasobject or not (stored.isnative and wanted.isnative):
        return False
    if stored == wanted and not scaled:
        return True
    if scaled and not is_float(wanted):
        return False
    return stored.char in _CAST and (wanted.char in _CAST or wanted.name == "bfloat16")


def plane_for(stored: DType, wanted: DType, *, scaled: bool) -> PlaneLoop:
    """Return the loop for a pair that `is_castable`. Needs numba."""
    from rankwise.data.store.decode import planes

    if stored == wanted and not scaled:
        return planes.copied_plane
    source, source_is = _in_memory(stored)
    target, target_is = _in_memory(wanted)
    if wanted.kind in "iu" and stored.kind != "b" and not np.can_cast(stored, wanted, "safe"):
        low, high = _limits(stored, wanted)
        return planes.checked_plane(source, source_is, target, low, high)
    working = _cast_dtype(stored, wanted, scaled=scaled)
    return planes.cast_plane(source, source_is, target, target_is, working, scaled=scaled)


def _in_memory(dtype: DType) -> tuple[Any, int]:
    from rankwise.data.store.decode import planes

    if dtype.kind == "b":
        return np.uint8, planes.BOOLEAN
    if dtype.name == "bfloat16":
        return np.uint16, planes.BFLOAT16
    if dtype.name == "float16":
        return np.uint16, planes.HALF
    # by name: NumPy has two 64-bit types on some systems
    return getattr(np, dtype.name), planes.NUMBER


def _cast_dtype(stored: DType, wanted: DType, *, scaled: bool) -> Any:
    """Return the intermediate type, as in NumPy: float32 for 16-bit targets, but float64 for half precision."""
    if scaled or stored.name == "float16":
        return np.float64 if wanted == np.float64 else np.float32
    if wanted.name == "float16":
        return np.float64 if stored == np.float64 else np.float32
    return np.float32 if wanted.name == "bfloat16" else None


def _limits(stored: DType, wanted: DType) -> tuple[Any, Any]:
    """Return bounds of valid values: inclusive for integers, exclusive in float64 for floats."""
    limits = np.iinfo(wanted)
    if stored.kind == "f":
        low = np.float64(limits.min) - 1
        return (low if low < limits.min else np.nextafter(low, -np.inf)), np.float64(limits.max + 1)
    mine = np.iinfo(stored)
    return stored.type(max(limits.min, mine.min)), stored.type(min(limits.max, mine.max))
