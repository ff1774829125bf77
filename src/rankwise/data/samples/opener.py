"""Opens paths, URLs and arrays as columns of a source."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.feed import other_way
from rankwise.data.samples.columns import Column, MemoryColumn, StoredColumn
from rankwise.data.store import ArrayMeta, BoxReader, list_arrays, load_zarr, read_meta, require_codecs, understands_url
from rankwise.errors import ConfigError, DataError

Found = TypeVar("Found")


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
        array = _open_array(array)
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


def _open_array(uri: str | os.PathLike[str]) -> Any:
    return _found(read_meta, uri) if _is_ours(uri) else _open_foreign(uri, group=False)


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
