"""What the arrays of a dataset hold, as checksums of their files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

__all__ = ["array_checksums"]

_BLOCK = 2**20


def array_checksums(folder: Path) -> dict[str, str]:
    """Return a checksum (BLAKE2b, 128 bits) of the files of each array below a folder, by the name of the array.

    Args:
        folder: a Zarr v3 group.
    """
    found = {}
    for document in sorted(folder.rglob("zarr.json")):
        array = document.parent
        if json.loads(document.read_bytes()).get("node_type") != "array":
            continue
        whole = hashlib.blake2b(digest_size=16)
        for path in sorted(path for path in array.rglob("*") if path.is_file()):
            whole.update(f"{path.relative_to(array).as_posix()} {path.stat().st_size}\n".encode())
            _feed(whole, path)
        found[array.relative_to(folder).as_posix()] = whole.hexdigest()
    return found


def _feed(whole: hashlib.blake2b, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
