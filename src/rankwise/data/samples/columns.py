"""Fields of the samples: rows of a NumPy array or of a Zarr array, opened from paths, URLs and arrays."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar
from zipfile import BadZipFile

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray
from rankwise.data.feed import other_way
from rankwise.data.store import (
    ArrayMeta,
    BoxError,
    BoxPlan,
    BoxReader,
    BoxReport,
    BoxRequest,
    describe_missing,
    list_arrays,
    load_zarr,
    read_meta,
    require_codecs,
    understands_url,
)
from rankwise.errors import ConfigError, DataError, SampleError

_LOCAL_BYTES = 2**20
_PROBE_BYTES = 2**20

Found = TypeVar("Found")


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
                missing = DataError(
                    f"{describe_missing(plan, box)} and would be read as the fill value: copy the whole store or allow "
                    "this by missing='fill'"
                )
                found.setdefault(box, _sample_error(int(ids[box]), BoxError(box=box, place=self.place, error=missing)))
        return found


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


def make_column(name: str, array: Any, reader: BoxReader, *, missing: str) -> Column:
    """Return a field of a source.

    Args:
        name: of the field.
        array: NumPy array, tensor in host memory, Zarr array, its metadata, or a path or URL.
        reader: reads Zarr arrays.
        missing: see `StoredColumn`.

    Raises:
        ConfigError: it is something else, or cannot form batches.
        DataError: there is no array, or it is damaged.
        MissingExtraError: the package that reads Zarr arrays is not installed.
    """
    if isinstance(array, (str, os.PathLike)):
        if str(array).endswith(".npy"):
            return MemoryColumn(_load_npy(Path(array)), place=f"{name!r} ({array})")
        array = _found(read_meta, array) if _is_ours(array) else _open_foreign(array, group=False)
    elif _is_tensor(array):
        array = _numpy_of(name, array)
    if isinstance(array, np.ndarray):
        return MemoryColumn(array, place=f"field {name!r}")
    require_codecs()
    if not isinstance(array, ArrayMeta) and hasattr(array, "store_path") and hasattr(array, "shape"):
        array = reader.adopt(array)
    if isinstance(array, ArrayMeta):
        return StoredColumn(array, reader, missing=missing)
    raise ConfigError(
        f"field {name!r} is a {type(array).__module__}.{type(array).__name__}; an ArraySource accepts NumPy arrays, "
        f"tensors, Zarr arrays, and paths to Zarr arrays or .npy files: {other_way(array)}"
    )


class GroupArrays(Mapping[str, Any]):
    """The arrays of a Zarr group and of the groups inside it, by their path in the group.

    Arrays that cannot form batches raise an error only when they are accessed.

    Args:
        uri: folder or URL of the group, or ZIP file.

    Raises:
        DataError: there is no group.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self._uri = uri
        self._bad: dict[str, DataError] = {}
        self._arrays: Mapping[str, Any] = (
            _found(lambda place: list_arrays(place, bad=self._bad), uri)
            if _is_ours(uri)
            else dict(_walk(_open_foreign(uri, group=True)))
        )

    def __getitem__(self, name: str) -> Any:
        if name in self._bad:
            raise self._bad[name]
        if name not in self._arrays:
            held = ", ".join(map(repr, self)) or "nothing"
            raise DataError(f"the group {self._uri} has no array {name!r}; it holds {held}")
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._arrays, *self._bad]))

    def __len__(self) -> int:
        return len(self._arrays) + len(self._bad)


def _is_ours(uri: str | os.PathLike[str]) -> bool:
    """Whether our engine reads it; zarr-python reads the rest: ZIP files and other URLs."""
    text = os.fspath(uri)
    if "://" in text or "::" in text:
        return understands_url(text)
    return not (text.endswith(".zip") and Path(text).is_file())


def _found(look: Callable[[str | os.PathLike[str]], Found], uri: str | os.PathLike[str]) -> Found:
    """Open a path or URL. If a file or folder is not Zarr, the error says what to do with it."""
    try:
        return look(uri)
    except DataError as error:
        place = Path(uri)
        if not place.exists() or any((place / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
            raise
        raise DataError(f"{error}; {other_way(uri)}") from error


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")  # a caller with a tensor has imported torch
    return torch is not None and isinstance(array, torch.Tensor)


def _numpy_of(name: str, tensor: Any) -> NDArray:
    """Return the tensor's memory as an array."""
    import torch

    try:
        if tensor.dtype == torch.bfloat16:
            require_codecs()
            import ml_dtypes

            array: NDArray = tensor.detach().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        else:
            array = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(
            f"field {name!r} is a tensor of {tensor.dtype} ({tensor.layout}) on {tensor.device}: samples must be in "
            "host memory and dense; pass tensor.cpu() or tensor.to_dense(), or pass a torch Dataset that makes them to "
            "DatasetLoader(dataset, order=...)"
        ) from error
    return array


def _open_foreign(uri: str | os.PathLike[str], *, group: bool) -> Any:
    zarr, text = load_zarr(), os.fspath(uri)
    try:
        store = text if "://" in text or "::" in text else zarr.storage.ZipStore(text, mode="r")
        node = zarr.open(store, mode="r")
    except (ValueError, TypeError, KeyError, OSError, ImportError, BadZipFile) as error:
        raise DataError(f"the Zarr store at {uri} cannot be opened: {type(error).__name__}: {error}") from error
    if group and hasattr(node, "shape"):
        raise DataError(f"{uri} is a single Zarr array, not a group of arrays; give it a field name: {{'x': {uri!r}}}")
    if not group and not hasattr(node, "shape"):
        held = ", ".join(sorted(repr(name) for name, _ in _walk(node))) or "nothing"
        raise DataError(f"{uri} is a Zarr group, not an array; it holds {held}")
    return node


def _walk(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, array in group.arrays():
        yield prefix + name, array
    for name, inner in group.groups():
        yield from _walk(inner, f"{prefix}{name}/")


def _load_npy(path: Path) -> NDArray:
    try:
        array: NDArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:  # EOFError: the file is empty
        raise DataError(f"the file {path} cannot be read as a NumPy array: {error}") from error
    return array
