"""What the arrays of a dataset hold, as checksums of their files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["array_checksums"]

_BLOCK = 2**20


def array_checksums(folder: Path, known: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """Return a checksum (BLAKE2b, 128 bits) of each array below a folder, by the name of the array.

    It is one of the names and checksums of the files of the array.

    Args:
        folder: a Zarr v3 group.
        known: checksums of files that need not be read, by array and by path inside it.
    """
    found = {}
    for document in sorted(folder.rglob("zarr.json")):
        place = document.parent
        if json.loads(document.read_bytes()).get("node_type") != "array":
            continue
        name = place.relative_to(folder).as_posix()
        held = (known or {}).get(name, {})
        whole = hashlib.blake2b(digest_size=16)
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            inside = path.relative_to(place).as_posix()
            whole.update(f"{inside} {held.get(inside) or _file_checksum(path)}\n".encode())
        found[name] = whole.hexdigest()
    return found


def _file_checksum(path: Path) -> str:
    whole = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()
