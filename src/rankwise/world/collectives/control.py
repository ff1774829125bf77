"""Collectives without a tree: barrier, raising together, and subgroups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from rankwise.errors import ConfigError
from rankwise.world.collectives.channel import Channel, KeyChannel
from rankwise.world.collectives.handshake import Call, Contribution, call_place, exchange, run_transport

if TYPE_CHECKING:
    from rankwise.world.value import World


def barrier(world: World) -> None:
    """See `World.barrier`."""
    if world.channel is not None:
        exchange(world, Call("barrier", call_place()), Contribution)


def raise_together(world: World, error: BaseException | None) -> None:
    """See `World.raise_together`."""
    if world.channel is None:
        if error is not None:
            raise error
        return

    def prepare() -> Contribution:
        if error is not None:
            raise error
        return Contribution()

    exchange(world, Call("raise_together", call_place()), prepare)


def subgroup(world: World, ranks: Sequence[int]) -> World | None:
    """See `World.subgroup`."""
    members = sorted(int(rank) for rank in ranks)
    if world.channel is None:
        _check_members(world, members)
        return world

    def prepare() -> Contribution:
        _check_members(world, members)
        number = max(_num_groups(world), _first_unused)
        return Contribution(data=number.to_bytes(8, "little"), structure=f"ranks {members}")

    call = Call("subgroup", call_place())
    _, frames = exchange(world, call, prepare)
    highest = max(int.from_bytes(frames[rank].payload, "little") for rank in members)
    channel = _open(world, members, call, highest)
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
            f"a subgroup needs at least one rank of this world (0 to {world.world_size - 1}), each once; got {members}"
        )


_first_unused = 0  # the first group number not yet used in a name, see _open_group


def _num_groups(world: World) -> int:
    """Return torch's number of process groups in this process."""
    if not isinstance(world.channel, Channel):
        return 0
    import torch.distributed as dist

    return len(dist.distributed_c10d._world.pg_names)  # noqa: SLF001  (part of the names of groups, see _open_group)


def _open(world: World, members: list[int], call: Call, highest: int) -> Channel | KeyChannel | None:
    """Create the group; one rank needs none. All ranks of the job must call torch, unless members synchronise alone."""
    if len(members) == 1:
        return None
    parent = world.channel
    if isinstance(parent, KeyChannel):
        return _key_channel(world, parent, members)
    import torch.distributed as dist

    assert parent is not None
    whole_job = world.world_size == dist.get_world_size()
    if not (whole_job or world.rank in members):
        return None
    ranks = [world.global_ranks[rank] for rank in members]
    num_fillers = 0 if whole_job else highest - _num_groups(world)
    group = run_transport(
        world, call, lambda: _open_group(ranks, parent.timeout, alone=not whole_job, num_fillers=num_fillers)
    )
    return Channel(group, parent.timeout, device=parent.device)


def _open_group(ranks: list[int], timeout: timedelta, *, alone: bool, num_fillers: int) -> object:
    """Create a torch process group.

    If members synchronise alone, torch makes the group's name from their ranks and each member's number of groups. If
    these numbers differ, the members would wait under different names until the timeout. So a rank with fewer groups
    opens extra groups of its own until the numbers agree. All ranks do the same if a group of this name has existed
    before: an early rank would find that group's stale addresses.
    """
    global _first_unused  # noqa: PLW0603  (what names this process has used is of the process)
    import torch.distributed as dist

    own = [dist.get_rank()]
    fillers = [dist.new_group(own, timeout=timeout, use_local_synchronization=True) for _ in range(num_fillers)]
    group = dist.new_group(ranks, timeout=timeout, use_local_synchronization=alone)
    if alone:
        _first_unused = len(dist.distributed_c10d._world.pg_names)  # noqa: SLF001  (one more than the name has)
    for filler in fillers:
        dist.destroy_process_group(filler)
    return group


def _key_channel(world: World, parent: KeyChannel, members: list[int]) -> KeyChannel | None:
    """Return a channel with its own keys: this call's number is the same on all ranks, and unique."""
    if world.rank not in members:
        return None
    name, senders = f"{parent.name}/{parent.calls}-of", tuple(world.global_ranks[rank] for rank in members)
    rank = members.index(world.rank)
    return KeyChannel(parent.client, name, rank, len(members), parent.timeout, senders=senders)
