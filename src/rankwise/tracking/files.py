"""Small JSON files that are either the old one or the new one, never half of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise._files import write_whole
from rankwise.errors import RunDirError

__all__ = ["read_json", "write_json"]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path` at once, see `write_whole`."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode())


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
