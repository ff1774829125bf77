"""Collectives without a tree: waiting, failing together, and making smaller worlds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.errors import ConfigError
from rankwise.world.channel import Channel
from rankwise.world.exchanging import call_place, carry, exchange
from rankwise.world.frame import Call
from rankwise.world.key_channel import KeyChannel

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["barrier", "raise_together", "subgroup"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Nothing:
    """An offer without payload."""

    structure: str = ""
    payload_bytes: int = 0

    def payload(self) -> bytes:
        return b""


def barrier(world: World) -> None:
    """See `World.barrier`."""
    if world.channel is not None:
        exchange(world, Call("barrier", call_place()), _Nothing)


def raise_together(world: World, error: BaseException | None) -> None:
    """See `World.raise_together`."""
    if world.channel is None:
        if error is not None:
            raise error
        return

    def prepare() -> _Nothing:
        if error is not None:
            raise error
        return _Nothing()

    exchange(world, Call("raise_together", call_place()), prepare)


def subgroup(world: World, ranks: Sequence[int]) -> World | None:
    """See `World.subgroup`."""
    members = sorted(int(rank) for rank in ranks)
    if world.channel is None:
        _check_members(world, members)
        return world

    def prepare() -> _Nothing:
        _check_members(world, members)
        return _Nothing(f"ranks {members}")

    call = Call("subgroup", call_place())
    exchange(world, call, prepare)
    channel = _open(world, members, call)
    if world.rank not in members:
        return None
    return dataclasses.replace(
        world,
        rank=members.index(world.rank),
        world_size=len(members),
        backend="none" if channel is None and world.backend != "jax" else world.backend,
        global_ranks=tuple(world.global_ranks[rank] for rank in members),
        channel=channel,
    )


def _check_members(world: World, members: list[int]) -> None:
    if not members or len(set(members)) != len(members) or not 0 <= members[0] <= members[-1] < world.world_size:
        raise ConfigError(
            f"a subgroup is made of at least one rank of this world (0 to {world.world_size - 1}), each once; "
            f"got {members}"
        )


def _open(world: World, members: list[int], call: Call) -> Channel | KeyChannel | None:
    """Make the group; one rank needs none. torch wants the whole job to take part, unless members synchronise alone."""
    if len(members) == 1:
        return None
    parent = world.channel
    if isinstance(parent, KeyChannel):
        return _some_keys(world, parent, members)
    import torch.distributed as dist

    assert parent is not None
    whole_job = world.world_size == dist.get_world_size()
    if not (whole_job or world.rank in members):
        return None
    ranks = [world.global_ranks[rank] for rank in members]
    groups: list[object] = []
    carry(
        world,
        call,
        lambda: groups.append(dist.new_group(ranks, timeout=parent.timeout, use_local_synchronization=not whole_job)),
    )
    return Channel(groups[0], parent.timeout, device=parent.device)


def _some_keys(world: World, parent: KeyChannel, members: list[int]) -> KeyChannel | None:
    """Keys of their own: the number of this call is the same on all ranks, and no other call has it."""
    if world.rank not in members:
        return None
    return KeyChannel(
        parent.client, f"{parent.name}/{parent.calls}-of", members.index(world.rank), len(members), parent.timeout
    )
