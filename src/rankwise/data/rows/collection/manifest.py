"""What a collection says about itself, in the attributes of its group, and how it gets its members all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankwise._files import write_whole
from rankwise.data.rows.datasets import COLLECTION_TYPE, MANIFEST
from rankwise.errors import DataError

__all__ = ["commit", "has_manifest", "listed_names", "on_disk", "read_manifest"]

_VERSION = 1


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a collection, ``{"version", "datasets": {name: ...}, "writes": [...]}``.

    It is empty where there is none.

    Raises:
        DataError: a later version wrote it.
    """
    manifest = _document(folder).get("attributes", {}).get(MANIFEST)
    if manifest is None:
        return {"version": _VERSION, "datasets": {}, "writes": []}
    if manifest.get("version") != _VERSION:
        raise DataError(
            f"the manifest of {folder} has version {manifest.get('version')!r}, wanted {_VERSION}: a newer rankwise "
            "wrote it; use that one"
        )
    found: dict[str, Any] = manifest
    return found


def on_disk(folder: Path) -> list[str]:
    """Return the folders that are named like datasets, in the order of their numbers."""
    names = [path.name for path in folder.glob("dataset_*") if path.name.removeprefix("dataset_").isdigit()]
    return sorted(names, key=lambda name: int(name.removeprefix("dataset_")))


def listed_names(folder: Path) -> list[str]:
    """Return the names of the datasets of a collection: those of its manifest, else all folders named so."""
    if has_manifest(folder):
        held = read_manifest(folder)["datasets"]
        return [name for name in on_disk(folder) if name in held]
    return on_disk(folder)


def has_manifest(folder: Path) -> bool:
    """Whether a collection has a manifest: rankwise wrote or added to it."""
    return MANIFEST in _document(folder).get("attributes", {})


def commit(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace what a collection says of itself, at once: from now on it has the datasets of the manifest.

    Readers that list folders find the datasets by the consolidated metadata, which name these and no others.
    """
    document = _document(folder)
    attributes = document.get("attributes", {}) | {
        "encoding-type": COLLECTION_TYPE,
        "encoding-version": "0.1.0",
        MANIFEST: manifest,
    }
    nodes = {}
    for name in manifest["datasets"]:
        for path in sorted((folder / name).rglob("zarr.json")):
            node = json.loads(path.read_bytes())
            node.pop("consolidated_metadata", None)
            nodes[path.parent.relative_to(folder).as_posix()] = node
    whole = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": attributes,
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": nodes},
    }
    write_whole(folder / "zarr.json", json.dumps(whole, indent=1).encode())


def _document(folder: Path) -> dict[str, Any]:
    path = folder / "zarr.json"
    document: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return document
