"""Saving: every rank writes its files into a temporary folder, the main rank publishes it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise._files import fsync_folder
from rankwise._version import __version__
from rankwise.checkpoint.manifest import CheckpointInfo, FileRecord, PartRecord, encode_manifest
from rankwise.checkpoint.parts import as_part
from rankwise.checkpoint.payload import encode, write_payload
from rankwise.checkpoint.publishing import Fence, folder_name, publish
from rankwise.checkpoint.together import take_together
from rankwise.data.contract import JSON
from rankwise.errors import CheckpointError, ConfigError, DesyncError

if TYPE_CHECKING:
    from rankwise.world import World

__all__ = ["SaveJob", "save_job", "write_checkpoint"]

_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """One rank's part of a save: what to write where.

    Attributes:
        temporary: the folder that is being written.
        target: its final name.
        scopes: scope by part, equal on all ranks.
        trees: encoded tree by part, for the parts that this rank writes.
        head: manifest without the files.
    """

    temporary: Path
    target: Path
    scopes: Mapping[str, str]
    trees: Mapping[str, Any]
    head: CheckpointInfo


def save_job(
    root: Path, world: World, *, step: int, attempt: int, parts: Mapping[str, Any], meta: Mapping[str, JSON] | None
) -> SaveJob:
    """Take the states of all parts of this rank. Local: no collective, nothing is written.

    Raises:
        ConfigError: a bad step, name, part or `meta`.
        CheckpointError: a state holds what a checkpoint cannot.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigError(f"a checkpoint wants the number of optimizer steps done, an int >= 0; got {step!r}")
    for name in parts:
        if not isinstance(name, str) or _PART_NAME.fullmatch(name) is None:
            raise ConfigError(f"a part's name is made of letters, digits, '.', '_' and '-'; got {name!r}")
    sources = {name: as_part(name, value) for name, value in parts.items()}
    trees = {
        name: encode(part.state_dict(), name)
        for name, part in sources.items()
        if world.is_main or part.scope != "replicated"
    }
    target = root / folder_name(step)
    return SaveJob(
        temporary=root / f".tmp-{target.name}-attempt-{attempt}",
        target=target,
        scopes={name: part.scope for name, part in sources.items()},
        trees=trees,
        head=CheckpointInfo(
            path=target,
            step=step,
            attempt=attempt,
            world_size=world.world_size,
            time=time.time(),
            versions={"rankwise": __version__, **_loaded_versions()},
            parts={},
            meta=_checked_meta(meta or {}),
        ),
    )


def _loaded_versions() -> dict[str, str]:
    loaded = ((name, sys.modules.get(name)) for name in ("torch", "jax"))
    return {name: str(module.__version__) for name, module in loaded if module is not None}


def write_checkpoint(job: SaveJob, world: World, fence: Fence) -> None:
    """Write and publish. Every rank must call it; if it fails on one, it fails on all and nothing is published."""
    what = f"saving checkpoint {job.target}"
    try:
        take_together(world, what, lambda: _prepare(job, world))
        _agree(job, world)
        files = take_together(world, what, lambda: _write_own(job, world))
        gathered = world.gather_object(files)
        take_together(world, what, lambda: _publish(job, gathered, fence))
    except BaseException:
        own = job.temporary if world.is_main else job.temporary / f"rank-{world.rank}"
        shutil.rmtree(own, ignore_errors=True)
        raise


def _prepare(job: SaveJob, world: World) -> None:
    if world.is_main:
        if job.temporary.exists():
            shutil.rmtree(job.temporary)
        job.temporary.mkdir(parents=True)


def _agree(job: SaveJob, world: World) -> None:
    """Refuse ranks that save different things: the manifest would promise what is not there."""
    plans = world.all_gather_object((job.head.step, dict(job.scopes)))
    different = tuple(rank for rank, plan in enumerate(plans) if plan != plans[0])
    if different:
        told = "; ".join(f"rank {rank}: step {plans[rank][0]}, {plans[rank][1]}" for rank in (0, *different))
        raise DesyncError(
            f"all ranks must save the same step with the same parts and scopes, but: {told}", ranks=different
        )


def _write_own(job: SaveJob, world: World) -> dict[str, FileRecord]:
    folder = job.temporary / f"rank-{world.rank}"
    written = {}
    for name, tree in job.trees.items():
        replicated = job.scopes[name] == "replicated"
        if not replicated:
            # with parents: a network file system may not show yet what the main rank has made
            folder.mkdir(parents=True, exist_ok=True)
        written[name] = write_payload(job.temporary, name if replicated else f"{folder.name}/{name}", tree)
    if folder.exists():
        fsync_folder(folder)
    return written


def _publish(job: SaveJob, gathered: list[dict[str, FileRecord]] | None, fence: Fence) -> None:
    if gathered is None:
        return
    head = job.head
    _refuse_invisible(job, gathered)
    parts = {
        name: PartRecord(scope=scope, files=tuple(files[name] for files in gathered if name in files))
        for name, scope in job.scopes.items()
    }
    info = CheckpointInfo(
        path=head.path,
        step=head.step,
        attempt=head.attempt,
        world_size=head.world_size,
        time=head.time,
        versions=head.versions,
        parts=parts,
        meta=head.meta,
    )
    with (job.temporary / "manifest.json").open("xb") as file:
        file.write(encode_manifest(info))
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(job.temporary)
    with fence():
        publish(job.temporary, job.target)


def _refuse_invisible(job: SaveJob, gathered: list[dict[str, FileRecord]]) -> None:
    """Look at every file from here: a rank may have written to a disk of its own machine."""
    for rank, files in enumerate(gathered):
        for record in files.values():
            path = job.temporary / record.path
            if not path.exists() or path.stat().st_size != record.bytes:
                raise CheckpointError(
                    f"rank {rank} has written {record.path}, which the main rank does not see in {job.temporary}; "
                    "checkpoints need a file system that all ranks share"
                )


def _checked_meta(meta: Mapping[str, JSON]) -> dict[str, JSON]:
    try:
        json.dumps(dict(meta))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"meta holds JSON: numbers, strings, bools, None, lists and dicts; {error}") from error
    return dict(meta)
