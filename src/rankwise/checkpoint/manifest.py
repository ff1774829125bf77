"""The manifest: what a checkpoint consists of, and whether all of it is still there."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise._version import __version__
from rankwise.data.contract import JSON
from rankwise.errors import CheckpointError

__all__ = [
    "CheckpointInfo",
    "FileRecord",
    "PartRecord",
    "encode_manifest",
    "folders",
    "read_manifest",
    "refuse_later_format",
    "step_of",
    "verify",
]

# 1: all files are of torch. 2: parts without tensors are files of arrays. A checkpoint has the lowest that tells it, so
# that whoever can read it does; any later format has its number and its checksum in the same places.
_FORMATS = (1, 2)
_ARRAYS = ".npz"
_NAME = re.compile(r"(?:\.old-)?step-(\d{10,})")
_BLOCK_BYTES = 1 << 20
_NONFINITE = "__nonfinite__"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One payload file: path relative to the checkpoint, size, SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part: how it survives a new world size, and its files by rank ("replicated" has one)."""

    scope: str
    files: tuple[FileRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint on disk.

    Attributes:
        path: its folder.
        step: optimizer steps done when it was saved.
        attempt: attempt of the run that saved it.
        world_size: ranks that saved it.
        time: when, in seconds since 1970.
        versions: versions of rankwise that saved it, and of torch and JAX where they were in use.
        parts: its parts by name.
        meta: what the caller gave to `Checkpointer.save`.
    """

    path: Path
    step: int
    attempt: int
    world_size: int
    time: float
    versions: Mapping[str, str]
    parts: Mapping[str, PartRecord]
    meta: Mapping[str, JSON]


def encode_manifest(info: CheckpointInfo) -> bytes:
    """Return the manifest of a checkpoint; its own checksum stands in it, so that damage to it shows as well."""
    body = {
        "format": _format_of(info),
        "step": info.step,
        "attempt": info.attempt,
        "world_size": info.world_size,
        "time": info.time,
        "versions": dict(info.versions),
        "parts": {
            name: {
                "scope": part.scope,
                "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in part.files],
            }
            for name, part in info.parts.items()
        },
        "meta": _strict(info.meta),
    }
    return json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False).encode() + b"\n"


def read_manifest(folder: Path) -> CheckpointInfo:
    """Return what the manifest in `folder` says.

    Raises:
        CheckpointError: it is missing, damaged or of another format; the message gives the reason alone.
    """
    body = _read_body(folder)
    if body.get("format") not in _FORMATS:
        raise CheckpointError(f"it has format {body.get('format')}; this rankwise reads format {_known()}")
    parts = {
        name: PartRecord(scope=part["scope"], files=tuple(FileRecord(**file) for file in part["files"]))
        for name, part in body["parts"].items()
    }
    keys = ("step", "attempt", "world_size", "time", "versions", "meta")
    facts = {key: body[key] for key in keys}
    return CheckpointInfo(path=folder, parts=parts, **{**facts, "meta": _loose(facts["meta"])})


def refuse_later_format(folder: Path) -> None:
    """Refuse what is whole, but was written in a way that came later; all else, damage too, is let through.

    Raises:
        CheckpointError: it is of a later format; the message says of which, and what to do.
    """
    try:
        body = _read_body(folder)
    except CheckpointError:
        return
    found, versions = body.get("format"), body.get("versions")
    if not isinstance(found, int) or found <= max(_FORMATS):
        return
    saver = versions.get("rankwise", "?") if isinstance(versions, dict) else "?"
    raise CheckpointError(
        f"{folder} has the checkpoint format {found}, of rankwise {saver}; this rankwise {__version__} reads format "
        f"{_known()}: install the version that saved it or a later one, or move the folder away to go on from an "
        "earlier checkpoint"
    )


def verify(folder: Path) -> CheckpointInfo:
    """Return the checkpoint in `folder` after reading all of it.

    Raises:
        CheckpointError: it is not whole; the message gives the reason alone.
    """
    info = read_manifest(folder)
    for part in info.parts.values():
        for file in part.files:
            _verify_file(folder / file.path, file)
    return info


def folders(root: Path) -> Iterator[Path]:
    """Yield the folders that may hold a published checkpoint, best first: latest attempt, then highest step.

    A later attempt that went back to an earlier step leaves the steps beyond it behind: they are not the newest.
    A folder set aside for its replacement counts as long as the replacement is not there.
    """
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        name = _NAME.fullmatch(folder.name)
        if name is None or not folder.is_dir():
            continue
        if folder.name.startswith(".old-") and (root / folder.name.removeprefix(".old-")).exists():
            continue
        found.append((_attempt(folder), int(name[1]), folder))
    for _, _, folder in sorted(found, reverse=True):
        yield folder


def step_of(folder: Path) -> int:
    """Return the step in a folder's name."""
    name = _NAME.fullmatch(folder.name)
    assert name is not None
    return int(name[1])


def _read_body(folder: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        digest = body.pop("sha256", None)
    except FileNotFoundError as error:
        raise CheckpointError("it has no manifest.json") from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"its manifest.json cannot be read ({error})") from error
    if digest != _digest(body):
        raise CheckpointError("its manifest.json is damaged (checksum)")
    return body


def _format_of(info: CheckpointInfo) -> int:
    files = (file for part in info.parts.values() for file in part.files)
    return 2 if any(file.path.endswith(_ARRAYS) for file in files) else 1


def _known() -> str:
    return " and ".join(map(str, _FORMATS))


def _attempt(folder: Path) -> int:
    # a damaged one sorts last among its peers only if nothing else is known about it: trust the number if it is there
    try:
        return int(json.loads((folder / "manifest.json").read_bytes())["attempt"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1 << 62  # look at it first, so that its damage is said


def _verify_file(path: Path, record: FileRecord) -> None:
    try:
        with path.open("rb") as file:
            digest, num_bytes = hashlib.sha256(), 0
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                num_bytes += len(block)
    except OSError as error:
        raise CheckpointError(f"{record.path} cannot be read ({error.strerror})") from error
    if num_bytes != record.bytes:
        raise CheckpointError(f"{record.path} has {num_bytes} bytes instead of {record.bytes}")
    if digest.hexdigest() != record.sha256:
        raise CheckpointError(f"{record.path} is damaged (checksum)")


def _strict(value: Any) -> Any:
    """Return `value` for strict JSON: a NaN or an infinity, which a diverged run reports, becomes a marked dict."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NONFINITE: str(value)}
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, (list, tuple)) else value


def _loose(value: Any) -> Any:
    """Undo `_strict`."""
    if isinstance(value, dict):
        return float(value[_NONFINITE]) if list(value) == [_NONFINITE] else {k: _loose(v) for k, v in value.items()}
    return [_loose(item) for item in value] if isinstance(value, list) else value


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
