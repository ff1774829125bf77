"""Arrays in stores of zarr-python, and chunks that only it decodes, one by one: any codec, filter, and order."""

from __future__ import annotations

import functools
import json
import operator
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.boxes import converted
from rankwise.data.store.execution.failures import REPLACED, ChunkFailure
from rankwise.data.store.execution.plan_cache import PlanCache
from rankwise.data.store.files.facts import ArrayCheck, is_temporary, retry_failed
from rankwise.data.store.files.handles import local_identity
from rankwise.data.store.meta import ArrayMeta, ChunkCodec, read_meta
from rankwise.data.store.meta.nodes import node_of, v2_node
from rankwise.data.store.meta.parser import array_of
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.remote import RemoteFiles
from rankwise.data.store.stats import ReaderStats
from rankwise.data.store.zarr_python import plain_codecs
from rankwise.errors import DataError

if TYPE_CHECKING:
    import zarr

_MOST = 1024


class AdoptedArrays:
    """Arrays in stores that only zarr-python can read: memory, ZIP files, any file system of fsspec.

    They are sent to other processes in the same way as zarr-python's arrays. Thread-safe.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def adopt(self, array: zarr.Array[Any]) -> ArrayMeta:
        """Return the metadata of an array; keep the array, unless it lies in a folder, which needs no store object.

        Raises:
            DataError: the array cannot form batches, or its metadata are invalid.
        """
        from zarr.core.buffer import default_buffer_prototype
        from zarr.storage import LocalStore

        if type(array.store) is LocalStore:  # a subclass may do more than read files
            return read_meta(Path(array.store.root) / array.path)
        place = self._keep(array)
        files = array.metadata.to_buffer_dict(default_buffer_prototype())
        documents: Mapping[str, Any] = {name: json.loads(content.to_bytes()) for name, content in files.items()}
        if "zarr.json" in documents:
            node = node_of(place, documents["zarr.json"])
        else:
            node = v2_node(place, ".zarray", documents[".zarray"], documents.get(".zattrs", {}))
        codec = ChunkCodec(kind="zarr", why=f"a {type(array.store).__name__}")
        return replace(array_of(node), codec=codec, index=None)

    def get(self, place: str) -> zarr.Array[Any] | None:
        """Return the array at a place, None for one that was not adopted."""
        return self._arrays.get(place)

    def stored_bytes(self, place: str, key: str) -> int:
        """Return the size of a file of an adopted array, -1 if it does not exist.

        Args:
            place: of the array.
            key: of the file, relative to the array.
        """
        from zarr.core.sync import sync

        array = self._arrays[place]
        try:
            return int(sync(array.store.getsize("/".join(part for part in (array.path, key) if part))))
        except (FileNotFoundError, KeyError):
            return -1

    def _keep(self, array: zarr.Array[Any]) -> str:
        """Return a place that no other array has. It contains "://", so no code looks for files there."""
        place = name = f"zarr-{array.store_path}".rstrip("/") if "://" in str(array.store_path) else "zarr://array"
        number = 1
        while self._arrays.setdefault(place, array) is not array:
            number += 1
            place = f"{name}#{number}"
        return place


class SlowArrays:
    """The last 1,024 arrays, opened with zarr-python; thread-safe.

    They use zarr-python's own codecs, even if another pipeline is configured, which may not support these codecs. Only
    the contents of shards go through the configured pipeline, because zarr-python uses it there.

    Args:
        remote: the reader of object stores.
        adopted: arrays in zarr-python's own stores.
        array_check: knows the error of a whole array behind a URL; asked when one of its objects is missing.
    """

    def __init__(self, remote: RemoteFiles, adopted: AdoptedArrays, array_check: ArrayCheck) -> None:
        self._remote = remote
        self._adopted = adopted
        self._array_check = array_check
        self._opened: OrderedDict[int, Any] = OrderedDict()
        # Also held while an array is opened: the crew's threads meet its first chunks together, and each would read its
        # documents. `plain_codecs` takes its lock inside; it never calls back here.
        self._lock = threading.Lock()

    def chunk(self, serial: int, array: ArrayMeta, coords: tuple[int, ...]) -> NDArray:
        """Return one decoded chunk, in native byte order; cropped at the array's edges.

        Raises:
            DataError: it cannot be decoded.
            OSError: it cannot be read.
            MemoryError: there is not enough memory to decode it.
        """
        region = tuple(
            slice(at * extent, min((at + 1) * extent, size))
            for at, extent, size in zip(coords, array.chunks, array.shape, strict=True)
        )
        # Opened arrays are read without the lock: zarr-python's arrays and stores allow reads from many threads.
        try:
            return np.asarray(self._open(serial, array)[region]).astype(array.dtype, copy=False)
        except (MemoryError, DataError):  # a DataError comes from an object store, and is complete
            raise
        except Exception as error:  # any error of a codec, possibly an OSError without a number
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(f"cannot be decoded by zarr-python: {type(error).__name__}: {error}") from error

    def _open(self, serial: int, array: ArrayMeta) -> Any:
        import zarr

        with self._lock:
            if serial in self._opened:
                self._opened.move_to_end(serial)
                return self._opened[serial]
            with plain_codecs(zarr):
                version: Any = array.zarr_format
                opened = zarr.open_array(self._store(array), mode="r", zarr_format=version)
            _check_same(array, opened)  # before it is kept: if it is refused, the next chunk checks again
            self._opened[serial] = opened
            while len(self._opened) > _MOST:
                self._opened.popitem(last=False)
            return opened

    def _store(self, array: ArrayMeta) -> Any:
        from zarr.storage import LocalStore, StorePath

        from rankwise.data.store.execution.checked_reads import CheckedStore

        adopted = self._adopted.get(array.place)
        if adopted is not None:
            return StorePath(CheckedStore(adopted.store), adopted.path)
        if array.is_remote:
            return CheckedStore(self._remote.zarr_store(array.place), trouble=partial(self._array_check.trouble, array))
        return CheckedStore(LocalStore(array.place, read_only=True))


def _check_same(array: ArrayMeta, opened: Any) -> None:
    dtype = np.dtype(opened.dtype).newbyteorder("=")
    chunks = tuple(max(1, extent) for extent in opened.chunks)
    if (tuple(opened.shape), chunks, dtype) != (array.shape, array.chunks, array.dtype):
        raise DataError(
            f"belongs to an array that was rewritten after its metadata were read: it had the shape "
            f"{list(array.shape)}, chunks {list(array.chunks)} and dtype {array.dtype}, now it has "
            f"{list(opened.shape)}, {list(opened.chunks)} and {dtype}; reopen the store"
        )


_UNFIT = "holds values that do not fit the requested dtype: choose a wider dtype"
_NO_MEMORY = "cannot be decoded: there is not enough memory"


class SlowChunks:
    """Chunks that zarr-python decodes one by one, and NumPy copies to their places."""

    def __init__(
        self,
        plan: BoxPlan,
        chosen: IntArray,
        out: NDArray,
        arrays: SlowArrays,
        *,
        plan_cache: PlanCache,
        failed: dict[int, ChunkFailure],
    ) -> None:
        # Each chunk is one task: no key of `failed` and no place in `out` has two writers.
        self._plan, self._chosen, self._out, self._failed = plan, chosen, out, failed
        self._arrays, self._plan_cache = arrays, plan_cache
        # Chunks stayed unreadable for so long that others need not wait as well. Only ever set: a late reader waits
        # once more.
        self._hopeless = False
        self._done: list[ReaderStats] = []  # threads append, which is atomic

    @property
    def stats(self) -> ReaderStats:
        """The counts."""
        return functools.reduce(operator.add, self._done, ReaderStats())

    def tasks(self) -> Iterator[Callable[[], None]]:
        """Yield one task for each chunk."""
        for chunk in self._chosen.tolist():
            yield partial(self._run, chunk)

    def _run(self, chunk: int) -> None:
        started = time.perf_counter()
        try:
            values, cached = self._decoded(chunk)
        except (DataError, OSError, MemoryError) as error:
            self._failed[chunk] = _failure(error)
            return
        unfit = self._scatter(chunk, values)
        if unfit:
            self._failed[chunk] = ChunkFailure(_UNFIT, damage=False, boxes=np.array(unfit, dtype=np.int64))
        done = ReaderStats(
            slow_chunks=int(not cached),
            cached_chunks=int(cached),
            read_bytes=0 if cached else max(0, int(self._plan.chunks.length[chunk])),
            decoded_bytes=0 if cached else values.nbytes,
            decode_s=time.perf_counter() - started,
        )
        self._done.append(done)

    def _decoded(self, chunk: int) -> tuple[NDArray, bool]:
        """Return the values of a chunk, and whether they were in the cache."""
        table, plan_cache = self._plan.chunks, self._plan_cache
        meta = self._plan.request.arrays[int(table.array[chunk])]
        (key,) = plan_cache.keys(meta, table.number[chunk : chunk + 1])
        (held,) = plan_cache.cache.peek([key])
        if held is not None:
            return held, True
        coords = tuple(table.coords[chunk].tolist())
        # Two reads may decode the same chunk at once: waiting for each other would cost more than it saves.
        values = self._decode_with_retries(plan_cache.serial(meta), meta, coords)
        facts = self._plan.files[int(table.file[chunk])]
        if not facts.is_remote and local_identity(facts.path) != facts.identity:
            # zarr-python may have opened another file than planned; it reads a missing one as fill values
            raise DataError(REPLACED)
        if plan_cache.cache.capacity_bytes and self._plan.request.keep:  # slow to decode: keep each at first use
            values = np.ascontiguousarray(values)
            plan_cache.cache.put(key, values)
        return values, False

    def _decode_with_retries(self, serial: int, meta: ArrayMeta, coords: tuple[int, ...]) -> NDArray:
        got: NDArray | OSError

        def attempt(_: int) -> None:
            nonlocal got
            try:
                got = self._arrays.chunk(serial, meta, coords)
            except OSError as error:
                got = error

        attempt(0)
        retries = retry_failed(lambda: [0] if is_temporary(got) and not self._hopeless else [], attempt)
        self._done.append(ReaderStats(retries=retries))
        if isinstance(got, OSError):
            self._hopeless |= is_temporary(got)
            raise got
        return got

    def _scatter(self, chunk: int, values: NDArray) -> list[int]:
        """Copy values to their places; return the boxes whose dtype they do not fit."""
        unfit: list[int] = []
        request, targets = self._plan.request, self._plan.targets
        which = int(self._plan.chunks.array[chunk])
        scale = None if request.scale is None else float(request.scale[which])
        offset = None if request.offset is None else float(request.offset[which])
        one_box = request.runs is None  # else boxes are rows of one array
        for at in range(int(targets.bounds[chunk]), int(targets.bounds[chunk + 1])):
            box = int(targets.box[at])
            extent = targets.extent[at].tolist()
            begin = np.unravel_index(int(targets.dst_start[at]), request.out_shape)
            reach = (1, *extent) if one_box else extent
            into = tuple(slice(int(low), int(low) + n) for low, n in zip(begin, reach, strict=True))
            taken = tuple(slice(low, low + n) for low, n in zip(targets.src_start[at].tolist(), extent, strict=True))
            place = request.arrays[which].place
            try:
                self._out[into] = converted(values[taken], request.dtype, scale=scale, offset=offset, place=place)
            except DataError:
                unfit.append(box)
        return unfit


def _failure(error: DataError | OSError | MemoryError) -> ChunkFailure:
    if isinstance(error, MemoryError):
        return ChunkFailure(_NO_MEMORY, damage=False, cause=error)
    words = str(error).rstrip(".") if isinstance(error, DataError) else f"cannot be read: {error}"
    damage = bool(getattr(error, "damage", isinstance(error, DataError)))
    return ChunkFailure(words, damage=damage, cause=error)
