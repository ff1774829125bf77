"""Bytes from rank to rank: the second message of a collective whose payload does not fit its frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.world.exchanging import carry
from rankwise.world.frame import Call

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World

__all__ = ["broadcast_bytes", "gather_bytes"]


def broadcast_bytes(world: World, call: Call, mine: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Return rank `call.root`'s bytes; the others' `mine` only says on which device they shall arrive."""
    import torch
    import torch.distributed as dist

    assert world.channel is not None
    group = world.channel.group
    if world.rank != call.root:
        mine = torch.empty(num_bytes, dtype=torch.uint8, device=mine.device)
    if num_bytes:
        carry(world, call, lambda: dist.broadcast(mine, group=group, group_src=call.root))
    return mine


def gather_bytes(world: World, call: Call, mine: torch.Tensor, num_bytes: list[int]) -> list[torch.Tensor] | None:
    """Return every rank's bytes, by rank, on all ranks if `call.root` is -1, else on that rank only (None elsewhere).

    Args:
        world: a world with a group.
        call: the call that this belongs to.
        mine: uint8, this rank's bytes.
        num_bytes: of every rank; known to all ranks.
    """
    import torch
    import torch.distributed as dist

    assert world.channel is not None
    group, longest = world.channel.group, max(num_bytes)
    receives = call.root in (-1, world.rank)
    everything = torch.empty(world.world_size if receives else 0, longest, dtype=torch.uint8, device=mine.device)
    if longest:
        padded = mine if len(mine) == longest else torch.nn.functional.pad(mine, (0, longest - len(mine)))
        parts = list(everything.unbind()) if receives else None
        if call.root < 0:
            carry(world, call, lambda: dist.all_gather(parts, padded, group=group))
        else:
            carry(world, call, lambda: dist.gather(padded, parts, group=group, group_dst=call.root))
    return [everything[rank, :length] for rank, length in enumerate(num_bytes)] if receives else None
