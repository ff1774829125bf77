"""Read small JSON files, and write them atomically."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise._files import write_whole
from rankwise.errors import RunDirError


def mode_in(folder: Path) -> int:
    """Return the mode of files in a run directory: readable by those who may enter the directory."""
    return stat.S_IMODE(folder.stat().st_mode) & 0o666


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path` atomically, see `write_whole`."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    # names of files need not be UTF-8: their odd bytes, surrogates in Python, become JSON's own escapes
    write_whole(path, f"{text}\n".encode(errors="backslashreplace"), mode=mode_in(path.parent))


def read_json(path: Path, *, mend: str = "restore it from a copy") -> dict[str, Any] | None:
    """Return the JSON object of a file, None if there is no such file.

    Args:
        path: the file.
        mend: what the user can do if the content is invalid.

    Raises:
        RunDirError: the content is invalid.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(
            f"{path} must hold a JSON object but cannot be parsed ({error}); {mend}, or start another run with "
            "--run-dir"
        ) from error
    if not isinstance(value, dict):
        raise RunDirError(f"{path} must hold a JSON object, got {type(value).__name__}; {mend}")
    return value
