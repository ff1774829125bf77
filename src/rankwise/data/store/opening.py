"""Open Zarr arrays and groups read-only, and say well why it does not work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rankwise.data.store.array import StoredArray
from rankwise.data.store.cache import ChunkCache
from rankwise.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import zarr

__all__ = ["load_zarr", "open_array", "open_arrays", "wrap_array"]


def load_zarr() -> ModuleType:
    """Return the zarr module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError("reading Zarr stores needs zarr-python: pip install 'rankwise[data]'") from error
    return zarr


def open_array(uri: str | os.PathLike[str], *, cache: ChunkCache | None = None) -> StoredArray:
    """Open one Zarr array (version 2 or 3) for reading.

    Args:
        uri: folder, or URL that zarr-python understands.
        cache: where decoded chunks are kept; by default an own cache of 256 MiB.

    Raises:
        DataError: nothing is there, or it is a group (the message lists its arrays).
        MissingExtraError: zarr is not installed.
    """
    node = _open(uri)
    if not _is_array(node):
        raise DataError(f"{uri} is a Zarr group, not an array; it holds {_listing(_arrays_of(node))}")
    return wrap_array(node, cache=cache)


def open_arrays(uri: str | os.PathLike[str], *, cache: ChunkCache | None = None) -> Mapping[str, StoredArray]:
    """Open the arrays of a Zarr group (groups inside it included) by their path in the group.

    Arrays that cannot form batches (no axis, objects) raise only when they are taken out of the mapping.

    Args:
        uri: folder, or URL that zarr-python understands.
        cache: where decoded chunks are kept, shared by all; by default one cache of 256 MiB.

    Raises:
        DataError: nothing is there, or it is an array.
        MissingExtraError: zarr is not installed.
    """
    node = _open(uri)
    if _is_array(node):
        raise DataError(f"{uri} is a single Zarr array, not a group of arrays; give it a field name: {{'x': {uri!r}}}")
    return _Lazy(_arrays_of(node), ChunkCache() if cache is None else cache, str(uri))


def wrap_array(array: zarr.Array[Any], *, cache: ChunkCache | None = None) -> StoredArray:
    """Return a reader for an array that zarr-python has opened already.

    Raises:
        DataError: it has no axis, or holds objects.
    """
    return StoredArray(array, place=_place(array), cache=cache)


class _Lazy(Mapping[str, StoredArray]):
    """The arrays of a group; each becomes a `StoredArray` when it is asked for."""

    def __init__(self, arrays: Mapping[str, zarr.Array[Any]], cache: ChunkCache, uri: str) -> None:
        self._arrays = arrays
        self._cache = cache
        self._uri = uri

    def __getitem__(self, name: str) -> StoredArray:
        if name not in self._arrays:
            raise DataError(f"the group {self._uri} has no array {name!r}; it holds {_listing(self._arrays)}")
        return wrap_array(self._arrays[name], cache=self._cache)

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _open(uri: str | os.PathLike[str]) -> Any:
    zarr = load_zarr()
    path = Path(uri).expanduser() if isinstance(uri, os.PathLike) or "://" not in uri else None
    try:
        return zarr.open(str(path) if path else str(uri), mode="r")
    except FileNotFoundError as error:
        raise DataError(f"there is no Zarr store at {uri}{_nearby(path)}") from error
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise DataError(f"the Zarr store at {uri} cannot be opened: {type(error).__name__}: {error}") from error


def _nearby(path: Path | None) -> str:
    """What is there instead, when the path is a local one."""
    if path is None:
        return ""
    if path.is_dir():
        names = sorted(p.name for p in path.iterdir())[:8]
        return f" (the folder has no zarr.json, .zarray or .zgroup; it holds {_listing(names)})"
    return " (the folder does not exist)" if not path.exists() else " (it is a file, not a folder)"


def _is_array(node: Any) -> bool:
    return hasattr(node, "shape")


def _arrays_of(group: Any, prefix: str = "") -> dict[str, zarr.Array[Any]]:
    found: dict[str, Any] = {}
    for name, array in group.arrays():
        found[prefix + name] = array
    for name, inner in group.groups():
        found.update(_arrays_of(inner, f"{prefix}{name}/"))
    return found


def _listing(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "nothing"


def _place(array: zarr.Array[Any]) -> str:
    root = getattr(array.store, "root", None)
    text = str(array.store_path) if root is None else str(Path(root) / array.path)
    return text.rstrip("/")
