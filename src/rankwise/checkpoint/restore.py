"""Restores parts at the same or another number of ranks, and reports the result of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.checkpoint.format.manifest import CheckpointInfo, PartRecord
from rankwise.checkpoint.format.payload import read_payload
from rankwise.checkpoint.format.pieces import join_ranks, whole_tree
from rankwise.data.contract import JSON, Stateful
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from rankwise.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of a restore, equal on all ranks.

    Attributes:
        path: the checkpoint.
        step: optimizer steps done.
        attempt: attempt that saved it.
        world_size: ranks that saved it.
        meta: from `Checkpointer.save`.
        restored: parts that were loaded.
        merged: those of them whose partial sums were added up for another world size.
        rederived: parts of single ranks that were not restored because the world size differs: derive them again.
        missing: parts that the checkpoint lacks, as allowed by the caller.
        surplus: parts of the checkpoint that were not requested.
    """

    path: Path
    step: int
    attempt: int
    world_size: int
    meta: Mapping[str, JSON]
    restored: tuple[str, ...]
    merged: tuple[str, ...]
    rederived: tuple[str, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"restored step {self.step} (attempt {self.attempt}, {self.world_size} ranks) from {self.path}"]
        notes = {what: getattr(self, what) for what in ("merged", "rederived", "missing", "surplus")}
        lines += [f"  {what}: {', '.join(names)}" for what, names in notes.items() if names]
        return "\n".join(lines)


def plan_restore(
    info: CheckpointInfo, parts: Mapping[str, Stateful], world: World, allow_missing: Sequence[str]
) -> RestoreReport:
    """Return what a restore will do, before it changes anything.

    Raises:
        CheckpointError: a part is missing, has another scope, or does not support this world size.
    """
    missing = tuple(name for name in parts if name not in info.parts)
    refused = [name for name in missing if name not in allow_missing]
    if refused:
        raise CheckpointError(
            f"{info.path} lacks {', '.join(refused)}; it holds {', '.join(info.parts)}. Pass "
            f"allow_missing={refused!r} to restore() to continue without them (a Trainer: leave them out of parts=)"
        )
    resized = info.world_size != world.world_size
    found = {name: (part, info.parts[name]) for name, part in parts.items() if name in info.parts}
    for name, (part, record) in found.items():
        _refuse_scope(info, name, part, record, resized=resized)
    rederived = tuple(name for name, (part, _) in found.items() if resized and part.scope == "rederived")
    return RestoreReport(
        path=info.path,
        step=info.step,
        attempt=info.attempt,
        world_size=info.world_size,
        meta=info.meta,
        restored=tuple(name for name in found if name not in rederived),
        merged=tuple(name for name, (part, _) in found.items() if resized and part.scope == "reduced"),
        rederived=rederived,
        missing=missing,
        surplus=tuple(name for name in info.parts if name not in parts),
    )


def read_part(info: CheckpointInfo, name: str, part: Stateful | None, world: World) -> Any:
    """Return the state that this rank must load.

    Raises:
        CheckpointError: a file cannot be read, or partial sums cannot be added up.
    """
    record = info.parts[name]
    if record.in_pieces:
        # mapped: each rank copies only its own shards from the files of all ranks
        tree = join_ranks([read_payload(info.path, file.path, mapped=True) for file in record.files])
        return tree if getattr(part, "by_pieces", False) else whole_tree(tree)
    if record.scope == "replicated":
        return read_payload(info.path, record.files[0].path)
    if info.world_size == world.world_size:
        return read_payload(info.path, record.files[world.rank].path)
    states = [read_payload(info.path, file.path) for file in record.files]
    merge = getattr(part, "merge_states", None)
    if merge is not None:
        return merge(states if world.is_main else [])
    total = _added(states, name)
    return total if world.is_main else _zeroed(total)


def load_part(part: Stateful, state: Any, name: str) -> None:
    """Pass a state to a part.

    Raises:
        CheckpointError: the part rejects it; the message names the part.
    """
    try:
        part.load_state_dict(state)
    except Exception as error:
        raise CheckpointError(
            f"the part {name!r} cannot load its state from the checkpoint: {type(error).__name__}: {error}"
        ) from error


def _refuse_scope(info: CheckpointInfo, name: str, part: Stateful, record: PartRecord, *, resized: bool) -> None:
    # pieces are joined; a part that supports sharding cuts a whole state
    whole = record.scope == "replicated" or record.in_pieces
    if whole and (part.scope == "replicated" or getattr(part, "by_pieces", False)):
        return
    if part.scope != record.scope:
        raise CheckpointError(
            f"{info.path}: the part {name!r} was saved as {record.scope!r} but is restored as {part.scope!r}"
        )
    if resized and part.scope == "sharded":
        raise CheckpointError(
            f"{info.path} was saved by {info.world_size} ranks, each with its shard of {name!r}; restore it with "
            f"{info.world_size} ranks, or leave the part out"
        )


def _added(states: list[Any], place: str) -> Any:
    """Sum partial sums, leaf by leaf."""
    first = states[0]
    if isinstance(first, dict):
        if any(state.keys() != first.keys() for state in states):
            raise CheckpointError(f"{place}: the ranks saved different keys; add a merge_states method to the part")
        return {key: _added([state[key] for state in states], f"{place}[{key!r}]") for key in first}
    if isinstance(first, (list, tuple)):
        if any(len(state) != len(first) for state in states):
            raise CheckpointError(f"{place}: the ranks saved different lengths; add a merge_states method to the part")
        return type(first)(
            _added(list(items), f"{place}[{index}]") for index, items in enumerate(zip(*states, strict=True))
        )
    if isinstance(first, (str, bytes)) or first is None or isinstance(first, bool):
        raise CheckpointError(f"{place} is not a number and cannot be summed; add a merge_states method to the part")
    return sum(states[1:], start=first)


def _zeroed(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _zeroed(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_zeroed(item) for item in tree)
    if isinstance(tree, (int, float, np.generic)):
        return type(tree)(0)
    return tree * 0 if not hasattr(tree, "zero_") else tree.clone().zero_()
