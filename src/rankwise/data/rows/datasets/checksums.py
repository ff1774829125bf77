"""Checksums of the arrays of a dataset, and a check for missing files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rankwise.data.rows.datasets.search import MANIFEST, MEMBER
from rankwise.errors import DataError


def array_checksums(folder: Path, known: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """Return a checksum (BLAKE2b, 128 bits) of each array below a folder, by the name of the array.

    It covers the names and checksums of the array's files; the `known` ones, by array and path in it, are not read.
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
            digest = held.get(inside)
            if not digest:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()
            whole.update(f"{inside} {digest}\n".encode())
        found[name] = whole.hexdigest()
    return found


def check_files(group: Any, names: Iterable[str]) -> None:
    """Refuse elements of a collection's dataset whose files were lost since they were written.

    Zarr reads a chunk without a file as the fill value: every code of a category would be 0. A chunk of zeros has no
    file either, so for a missing file the manifest's checksum says whether it ever existed. Stores without a manifest
    cannot tell. Only local folders are checked.
    """
    root = getattr(getattr(group, "store", None), "root", None)
    if root is None:
        return
    folder = Path(root) / group.path
    for name in names:
        looked = {document.parent: _lacking(document) for document in sorted((folder / name).rglob("zarr.json"))}
        missing = {place: lacking for place, lacking in looked.items() if lacking is not None}
        known = _written(folder) if missing else None
        for place, lacking in missing.items():
            if known is None or array_checksums(place).get(".") == known[1].get(place.relative_to(known[0]).as_posix()):
                continue
            raise DataError(
                f"{lacking} is missing: {name!r} would be read as if it held only zeros there, but the manifest "
                f"of the collection says that it does not. Copy {known[0]} completely or write it again"
            )


def _lacking(document: Path) -> Path | None:
    """Return the first missing chunk file of an array, by its chunk grid."""
    facts = json.loads(document.read_bytes())
    if facts.get("node_type") != "array" or facts["chunk_grid"]["name"] != "regular":
        return None
    extents = facts["chunk_grid"]["configuration"]["chunk_shape"]
    counts = [-(-size // extent) for size, extent in zip(facts["shape"], extents, strict=True)]
    keys = ("/".join(map(str, ("c", *coords))) for coords in product(*map(range, counts)))
    return next((document.parent / key for key in keys if not (document.parent / key).exists()), None)


def _written(folder: Path) -> tuple[Path, dict[str, str]] | None:
    """Return the dataset that contains a folder, and its arrays' checksums; None outside of rankwise collections."""
    for place in (folder, *folder.parents):
        document = place.parent / "zarr.json"
        if MEMBER.fullmatch(place.name) and document.exists():
            manifest = json.loads(document.read_bytes()).get("attributes", {}).get(MANIFEST, {})
            entry = manifest.get("datasets", {}).get(place.name)
            return None if entry is None else (place, entry["arrays"])
    return None
