"""The metadata documents of a store, as bytes; only this module reads them from storage."""

from __future__ import annotations

import os
from functools import lru_cache

from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError


def resolve_place(uri: str | os.PathLike[str]) -> str:
    """Return the absolute local path (without a trailing slash) or the URL for a URI."""
    text = os.fspath(uri)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111  (several times faster, called per sample)


def read_document(place: str, name: str, remote: RemoteFiles | None = None) -> bytes | None:
    """Return the bytes of a document, None if it does not exist.

    Args:
        place: absolute path, or URL, of an array or group.
        name: for example "zarr.json".
        remote: reads from URLs; by default with the options of `RemoteFiles`, shared by the process.

    Raises:
        DataError: it exists but cannot be read.
    """
    if "://" in place:
        return (remote or _shared_remote()).read_document(f"{place}/{name}")
    path = os.path.join(place, name)  # noqa: PTH118
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def list_folders(place: str, remote: RemoteFiles | None = None) -> list[str]:
    """Return the names of the folders in a place, in any order; empty if there is no folder.

    Raises:
        DataError: it cannot be listed.
    """
    if "://" in place:
        return [url.rsplit("/", 1)[-1] for url in (remote or _shared_remote()).list_prefix(place).folders]
    try:
        with os.scandir(place) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise DataError(f"the folder {place} cannot be listed: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1)
def _shared_remote() -> RemoteFiles:
    return RemoteFiles()
