"""Files that are the old one or the new one, never half of one, also after a power cut."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["fsync_folder", "write_whole"]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once: a temporary file beside it, fsync, rename, fsync of the folder.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Make the names inside a folder, those of files that were renamed into it too, survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
