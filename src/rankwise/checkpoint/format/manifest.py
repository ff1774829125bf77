"""The manifest: the contents of a checkpoint, and the check that they are complete."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from rankwise._version import __version__
from rankwise.checkpoint.storage.object_path import ObjectPath
from rankwise.data.contract import JSON
from rankwise.errors import CheckpointError

# 1: all files are from torch. 2: parts without tensors are array files. 3: a part is in pieces in the files of all
# ranks. A checkpoint has the lowest possible format, so that older versions can read it if they support it. Any later
# format has its number and its checksum in the same places.
_FORMATS = (1, 2, 3)
_ARRAYS = ".npz"
_NAME = re.compile(r"(?:\.old-)?step-(\d{10,})")
_BLOCK_BYTES = 1 << 20
_NONFINITE = "__nonfinite__"
# Errors for a path inside a damaged checkpoint; every other error comes from the storage and may be temporary.
_MISSING = (errno.ENOENT,)
_FOREIGN = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG)


class LaterFormatError(CheckpointError):
    """A valid checkpoint in a format of a later version of rankwise: it is not damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One payload file: path relative to the checkpoint, size, SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part: how to treat it at another world size, and its files by rank ("replicated" has one).

    `in_pieces`: the files have pieces of tensors, which together form a state for any number of ranks.
    """

    scope: str
    files: tuple[FileRecord, ...]
    in_pieces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint on disk.

    Attributes:
        path: its folder.
        step: optimizer steps done when it was saved.
        attempt: attempt of the run that saved it.
        world_size: ranks that saved it.
        time: time of the save, in seconds since 1970.
        versions: versions of rankwise that saved it, and of torch and JAX if in use.
        parts: its parts by name.
        meta: from the caller of `Checkpointer.save`.
        metrics: numbers that define the best, likewise.
    """

    path: Path
    step: int
    attempt: int
    world_size: int
    time: float
    versions: Mapping[str, str]
    parts: Mapping[str, PartRecord]
    meta: Mapping[str, JSON]
    metrics: Mapping[str, float] = field(default_factory=dict)


def encode_manifest(info: CheckpointInfo) -> bytes:
    """Return the manifest of a checkpoint; it includes its own checksum, so that damage to it is detected."""
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
                **({"in_pieces": True} if part.in_pieces else {}),
                "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in part.files],
            }
            for name, part in info.parts.items()
        },
        "meta": _strict(info.meta),
        **({"metrics": _strict(info.metrics)} if info.metrics else {}),
    }
    return json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False).encode() + b"\n"


def read_manifest(folder: Path) -> CheckpointInfo:
    """Return the checkpoint info from the manifest in `folder`.

    Raises:
        LaterFormatError: it has a later format; the message says which, and what to do.
        CheckpointError: it is missing or damaged; the message has only the reason.
        OSError: it cannot be read now.
    """
    body = _read_body(folder)
    _check_format(folder, body)
    keys = ("step", "attempt", "world_size", "time", "versions", "meta")
    try:
        parts = {
            name: PartRecord(
                scope=part["scope"],
                files=tuple(FileRecord(**file) for file in part["files"]),
                in_pieces=part.get("in_pieces", False),
            )
            for name, part in body["parts"].items()
        }
        facts = {key: body[key] for key in keys}
        loose = {"meta": _loose(facts["meta"]), "metrics": _loose(body.get("metrics", {}))}
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"its manifest.json lacks required fields ({error})") from error
    return CheckpointInfo(path=folder, parts=parts, **{**facts, **loose})


def verify(folder: Path) -> CheckpointInfo:
    """Return the checkpoint in `folder` after reading all of it.

    Raises:
        CheckpointError: it is incomplete or damaged; the message has only the reason.
        OSError: it cannot be read now, which does not mean that it is damaged.
    """
    info = read_manifest(folder)
    for part in info.parts.values():
        for file in part.files:
            _verify_file(folder, file)
    return info


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Open a regular file of a checkpoint; nothing outside its folder, and nothing that could block.

    No link below `folder` is followed, so neither `name` nor a link leads outside; a FIFO or a device is never opened
    for reading, whatever its name.

    Args:
        folder: the checkpoint.
        name: path inside it, with ``/``.

    Raises:
        CheckpointError: it does not exist, is not a regular file, or is outside; the message has only the reason.
        OSError: it cannot be opened now.
    """
    if isinstance(folder, ObjectPath):
        return folder.open(name)
    steps = PurePosixPath(name).parts
    if not steps or steps[0] == "/" or ".." in steps or "\0" in name:
        raise CheckpointError(f"its manifest.json names {name!r}, which is not a file inside it")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for step in steps[:-1]:
            above, at = at, _open_at(at, step, flags | os.O_DIRECTORY)
            os.close(above)
        file = _open_at(at, steps[-1], flags | os.O_NONBLOCK)
        os.close(at)
    except OSError as error:
        if error.errno in _MISSING:
            raise CheckpointError(f"it has no {name}") from error
        if error.errno in _FOREIGN:
            raise CheckpointError(f"{name} is not a regular file (a link, FIFO or device is not followed)") from error
        raise OSError(error.errno, error.strerror, str(folder / name)) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise CheckpointError(f"{name} is not a regular file (a link, FIFO or device is not followed)")
    return os.fdopen(file, "rb")


def _open_at(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except BaseException:
        os.close(folder)
        raise


def folders(root: Path, *, unreadable: bool = False) -> list[Path]:
    """Return the folders that may have a published checkpoint, best first: latest attempt, then highest step.

    If a later attempt went back to an earlier step, the steps beyond it are not the newest. A folder that was set aside
    for its replacement counts as long as the replacement is missing.

    Args:
        root: the folder of checkpoints.
        unreadable: whether a checkpoint that cannot be read now is listed, too, before all others.

    Raises:
        OSError: the folder, or a file that determines the order, cannot be read now.
    """
    found = [(_attempt(folder, unreadable=unreadable), step_of(folder), folder) for folder in _candidates(root)]
    return [folder for _, _, folder in sorted(found, reverse=True)]


def complete_checkpoints(root: Path) -> list[CheckpointInfo]:
    """Return those of `folders` with a valid, readable manifest: only these may be counted and removed by pruning."""
    found = []
    for folder in _candidates(root):
        try:
            info = read_manifest(folder)
        except (CheckpointError, OSError):
            continue
        found.append((info.attempt, step_of(folder), folder, info))
    return [info for *_, info in sorted(found, key=lambda entry: entry[:3], reverse=True)]


def _candidates(root: Path) -> list[Path]:
    if isinstance(root, ObjectPath):
        return [root / name for name in root.folders() if _NAME.fullmatch(name)]
    try:
        with os.scandir(root) as entries:
            names = {entry.name for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir()}
    except FileNotFoundError:
        return []
    return [root / name for name in names if not (name.startswith(".old-") and name.removeprefix(".old-") in names)]


def step_of(folder: Path) -> int:
    """Return the step in a folder's name."""
    name = _NAME.fullmatch(folder.name)
    assert name is not None
    return int(name[1])


def _read_body(folder: Path) -> dict[str, Any]:
    content = b"".join(_blocks(folder, "manifest.json"))
    try:
        body: dict[str, Any] = json.loads(content)
        digest = body.pop("sha256", None)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"its manifest.json cannot be read ({error})") from error
    if digest != _digest(body):
        raise CheckpointError("its manifest.json is damaged (checksum)")
    return body


def _blocks(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a file of a checkpoint; errors as in `open_inside`."""
    with open_inside(folder, name) as file:
        try:
            while block := file.read(_BLOCK_BYTES):
                yield block
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder / name)) from error


def _format_of(info: CheckpointInfo) -> int:
    if any(part.in_pieces for part in info.parts.values()):
        return 3
    files = (file for part in info.parts.values() for file in part.files)
    return 2 if any(file.path.endswith(_ARRAYS) for file in files) else 1


def _check_format(folder: Path, body: Mapping[str, Any]) -> None:
    found, versions = body.get("format"), body.get("versions")
    if found in _FORMATS:
        return
    known = f"{', '.join(map(str, _FORMATS[:-1]))} and {_FORMATS[-1]}"
    if not isinstance(found, int) or found < max(_FORMATS):
        raise CheckpointError(f"it has format {found}; this rankwise reads format {known}")
    saver = versions.get("rankwise", "?") if isinstance(versions, dict) else "?"
    raise LaterFormatError(
        f"{folder} has the checkpoint format {found}, of rankwise {saver}; this rankwise {__version__} reads format "
        f"{known}: install the version that saved it or a later one, or move the folder away to continue from an "
        "earlier checkpoint"
    )


def _attempt(folder: Path, *, unreadable: bool) -> int:
    # a damaged one sorts last among its peers only if nothing else is known: use the number if it exists
    try:
        return int(json.loads(b"".join(_blocks(folder, "manifest.json")))["attempt"])
    except (CheckpointError, ValueError, KeyError, TypeError, RecursionError):
        return 1 << 62  # check it first, so that its damage is reported
    except OSError:
        if not unreadable:
            raise
        return 1 << 62


def _verify_file(folder: Path, record: FileRecord) -> None:
    digest, num_bytes = hashlib.sha256(), 0
    for block in _blocks(folder, record.path):
        digest.update(block)
        num_bytes += len(block)
    if num_bytes != record.bytes:
        raise CheckpointError(f"{record.path} has {num_bytes} bytes instead of {record.bytes}")
    if digest.hexdigest() != record.sha256:
        raise CheckpointError(f"{record.path} is damaged (checksum)")


def _strict(value: Any) -> Any:
    """Return `value` for strict JSON: NaN and infinity, which a diverged run has, become marked dicts."""
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
