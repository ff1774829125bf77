"""Small JSON files that are either the old one or the new one, never half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.errors import RunDirError

__all__ = ["fsync_folder", "read_json", "write_json"]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path` at once: a temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, allow_nan=False, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file, None if there is no such file.

    Raises:
        RunDirError: the file holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(
            f"{path} should hold a JSON object but cannot be parsed ({error}); restore it from a copy, or start "
            "another run with --run-dir"
        ) from error
    if not isinstance(value, dict):
        raise RunDirError(f"{path} should hold a JSON object, got {type(value).__name__}")
    return value


def fsync_folder(path: Path) -> None:
    """Make a rename inside `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
