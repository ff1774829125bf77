"""The metadata documents of a store, as bytes: the one place that touches the storage."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from rankwise.errors import DataError

__all__ = ["Stamp", "read_document", "remote_folders", "resolve_place", "stamp_document"]

Stamp = tuple[int, int, int]  # bytes, time of the last change in ns, inode


def resolve_place(uri: str | os.PathLike[str]) -> str:
    """Return the absolute local path (without a trailing slash), or the URL, that a URI means."""
    text = os.fspath(uri)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111  (several times faster, called per sample)


def read_document(place: str, name: str) -> bytes | None:
    """Return the bytes of a document, None where there is none.

    Args:
        place: absolute path, or URL, of an array or group.
        name: such as "zarr.json".

    Raises:
        DataError: it is there and cannot be read.
    """
    if "://" in place:
        return _read_remote(place, name)
    path = os.path.join(place, name)  # noqa: PTH118
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def stamp_document(place: str, name: str) -> Stamp | None:
    """Return size, time of the last change and inode of a local document; None where there is none."""
    try:
        found = os.stat(os.path.join(place, name))  # noqa: PTH116, PTH118
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _read_remote(url: str, name: str) -> bytes | None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    node = _remote_node(url)
    if node is None:
        return None
    key = "/".join(part for part in (node.path, name) if part)
    found = sync(node.store.get(key, default_buffer_prototype()))
    return None if found is None else bytes(found.to_bytes())


def remote_folders(url: str) -> tuple[str, ...]:
    """Return the names of the folders behind a URL, in any order.

    Raises:
        DataError: the storage cannot be reached or listed.
    """
    node = _remote_node(url)
    if node is None:
        return ()
    try:
        return tuple(node) if not hasattr(node, "shape") else ()
    except Exception as error:  # whatever the storage's client raises
        raise DataError(f"{url} cannot be listed: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=64)
def _remote_node(url: str) -> Any:
    from rankwise.data.store.opening import load_zarr

    try:
        return load_zarr().open(url, mode="r")
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever the storage's client raises
        raise DataError(f"{url} cannot be opened: {type(error).__name__}: {error}") from error
