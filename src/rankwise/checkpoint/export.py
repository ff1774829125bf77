"""Checkpoints without a run: found by path, described, verified, and exported to files of other libraries."""

from __future__ import annotations

import contextlib
import importlib
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from rankwise.checkpoint.format.manifest import CheckpointInfo, LaterFormatError, folders, read_manifest, verify
from rankwise.checkpoint.format.payload import read_payload
from rankwise.checkpoint.format.pieces import join_ranks, whole_tree
from rankwise.checkpoint.storage.bucket import Bucket, is_url
from rankwise.errors import CheckpointError, ConfigError, RankwiseError, needs_extra

Format = Literal["pt", "safetensors", "npz"]
FORMATS: tuple[Format, ...] = ("pt", "safetensors", "npz")


def find_one(path: str) -> CheckpointInfo:
    """Return the checkpoint at a path: itself, or the newest complete one in a folder, a run directory or at a URL.

    Raises:
        CheckpointError: there is none, or it is damaged.
        OSError: it cannot be read now.
    """
    *before, last = _found(path)
    for folder in before:
        with contextlib.suppress(CheckpointError):
            return verify(folder)
    try:
        return verify(last)
    except LaterFormatError:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{last} is damaged: {error}") from error


def check_all(path: str) -> dict[str, str | None]:
    """Read all checkpoints at a path and verify their checksums; return what is wrong with each, None if it is intact.

    Raises:
        CheckpointError: there is none.
    """
    checked: dict[str, str | None] = {}
    for folder in _found(path, unreadable=True):
        try:
            verify(folder)
            checked[str(folder)] = None
        except (CheckpointError, OSError) as error:  # an OSError does not mean that it is damaged
            checked[str(folder)] = f"{'DAMAGED' if isinstance(error, CheckpointError) else 'UNREADABLE'}: {error}"
    return checked


def describe(path: str) -> list[dict[str, Any]]:
    """Return the contents of the manifests at a path, newest first, as JSON; payloads are not read.

    Raises:
        CheckpointError: there is none.
    """
    facts: list[dict[str, Any]] = []
    for folder in _found(path, unreadable=True):
        try:
            info = read_manifest(folder)
        except (CheckpointError, OSError) as error:
            state = "damaged" if isinstance(error, CheckpointError) else "unreadable"
            facts.append({"path": str(folder), state: str(error)})
            continue
        parts = {
            name: {
                "scope": part.scope,
                "in_pieces": part.in_pieces,
                "bytes": sum(file.bytes for file in part.files),
                "files": [file.path for file in part.files],
            }
            for name, part in info.parts.items()
        }
        keys = ("step", "attempt", "world_size", "time", "versions", "meta", "metrics")
        facts.append({"path": str(folder), **{key: getattr(info, key) for key in keys}, "parts": parts})
    return facts


def text_of(facts: Mapping[str, Any]) -> str:
    """Return one checkpoint of `describe` as readable text."""
    for state in ("damaged", "unreadable"):
        if state in facts:
            return f"{facts['path']}\n  {state}: {facts[state]}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["time"]))
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    ranks = "1 rank" if facts["world_size"] == 1 else f"{facts['world_size']} ranks"
    lines = [facts["path"], f"  step {facts['step']}, attempt {facts['attempt']}, {ranks}, {when}"]
    lines += [f"  {versions}"]
    lines += [f"  metrics: {', '.join(f'{k}={v:g}' for k, v in facts['metrics'].items())}"] if facts["metrics"] else []
    width = max(map(len, facts["parts"]), default=0)
    for name, part in facts["parts"].items():
        kind = "in pieces" if part["in_pieces"] else part["scope"]
        where = part["files"][0] if len(part["files"]) == 1 else f"{len(part['files'])} files"
        lines.append(f"  {name:{width}}  {kind:10}  {part['bytes'] / 1e3:12,.1f} kB  {where}")
    return "\n".join(lines)


def whole_state(info: CheckpointInfo, part: str) -> Any:
    """Return the state of a part, for any number of ranks that saved it; for parts of single ranks ``{"rank-0": ...}``.

    Raises:
        CheckpointError: there is no such part, or it cannot be read.
    """
    if part not in info.parts:
        raise CheckpointError(f"{info.path} has no part {part!r}; it holds {', '.join(info.parts)}")
    record = info.parts[part]
    states = [read_payload(info.path, file.path, mapped=record.in_pieces) for file in record.files]
    if record.in_pieces:
        return whole_tree(join_ranks(states))
    if record.scope != "replicated":
        return {f"rank-{rank}": state for rank, state in enumerate(states)}
    state = states[0]
    return state["tree"] if isinstance(state, dict) and list(state) == ["tree"] else state


def export_part(info: CheckpointInfo, out: Path, *, part: str = "model", to: Format = "pt", force: bool = False) -> int:
    """Write the state of a part as a file of another library, atomically; return its size in bytes.

    Args:
        info: the checkpoint.
        out: the file.
        part: which part.
        to: "pt" for ``torch.load`` (any state), "safetensors" or "npz" (tensors; nested ones are named
            ``a.b``).
        force: whether to replace an existing file.

    Raises:
        ConfigError: there is no such format, or the file exists.
        CheckpointError: the part is missing, cannot be read, or contains values that the format does not support, or
            the file cannot be written.
        MissingExtraError: the library is not installed.
    """
    if to not in FORMATS:
        raise ConfigError(f"the format must be one of {', '.join(FORMATS)}, got {to!r}")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists already: pass another name or --force")
    write = cast("dict[str, Callable[[Any, Path], None]]", {"pt": _pt, "safetensors": _safetensors, "npz": _npz})[to]
    state = whole_state(info, part)
    beside = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        write(state, beside)
        num_bytes = beside.stat().st_size
        beside.replace(out)
    except RankwiseError:
        raise
    except Exception as error:  # a full disk is an error of their own for torch and for safetensors
        raise CheckpointError(f"{out} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return num_bytes


def _found(path: str, *, unreadable: bool = False) -> list[Any]:
    """Return the folders of the checkpoints at a path, best first; for `unreadable` see `folders`.

    Raises:
        CheckpointError: there is none.
    """
    root: Any = Bucket(path, {}).root if is_url(path) else Path(path)
    is_one = "manifest.json" in root.names() if is_url(path) else (root / "manifest.json").exists()
    is_folder = is_url(path) or root.is_dir()
    places = (root, root / "checkpoints") if is_folder else ()
    found = [root] if is_one else next(filter(None, (folders(place, unreadable=unreadable) for place in places)), [])
    if not found:
        why = "neither a manifest.json nor a step-* folder" if is_folder else "it is no folder"
        raise CheckpointError(f"there is no checkpoint in {path}: {why}")
    return found


def _pt(state: Any, out: Path) -> None:
    torch = _library("torch", "pt")
    torch.save(dict(state) if isinstance(state, dict) else state, out)


def _safetensors(state: Any, out: Path) -> None:
    library = _library("safetensors.numpy" if not _has_torch(state) else "safetensors.torch", "safetensors")
    tensors = _flat(state, "safetensors")
    if _has_torch(state):  # the format does not support tensors that share memory
        torch = _library("torch", "safetensors")
        tensors = {name: torch.as_tensor(value).contiguous().clone() for name, value in tensors.items()}
    library.save_file(tensors, out)


def _npz(state: Any, out: Path) -> None:
    arrays = {}
    for name, value in _flat(state, "npz").items():
        try:
            arrays[name] = np.asarray(value)
        except TypeError as error:
            raise CheckpointError(
                f"{name} is {value.dtype}, which NumPy does not have: export it with --format safetensors or pt"
            ) from error
    with out.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _flat(tree: Any, to: str, place: str = "") -> dict[str, Any]:
    """Return tensors and arrays by name."""
    if isinstance(tree, Mapping):
        inside = [_flat(value, to, f"{place}.{key}".lstrip(".")) for key, value in tree.items()]
        return {name: value for found in inside for name, value in found.items()}
    if not hasattr(tree, "dtype"):
        raise CheckpointError(
            f"{place} is a {type(tree).__name__}, and {to} holds only tensors: export the part with --format pt"
        )
    return {place: tree}


def _has_torch(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return any(map(_has_torch, tree.values()))
    return type(tree).__module__.partition(".")[0] == "torch"


def _library(name: str, to: str) -> Any:
    package = name.partition(".")[0]
    with needs_extra(f"--format {to} needs {package}: pip install {package}"):
        found: Any = importlib.import_module(name)
    return found
