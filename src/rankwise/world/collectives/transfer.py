"""Send bytes over a process group: the second message of a collective whose payload does not fit into its frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise.world.collectives.channel import Channel
from rankwise.world.collectives.handshake import Call, run_transport

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World


def broadcast_bytes(world: World, call: Call, mine: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Return rank `call.root`'s bytes; on other ranks `mine` only sets the device of the result."""
    import torch
    import torch.distributed as dist

    group = _group(world)
    if world.rank != call.root:
        mine = torch.empty(num_bytes, dtype=torch.uint8, device=mine.device)
    if num_bytes:
        run_transport(world, call, lambda: dist.broadcast(mine, group=group, group_src=call.root))
    return mine


def gather_bytes(world: World, call: Call, mine: torch.Tensor, num_bytes: list[int]) -> list[torch.Tensor] | None:
    """Return every rank's bytes, by rank: on all ranks if `call.root` is -1, else on that rank only (None elsewhere).

    Args:
        world: a world with a group.
        call: the call that this belongs to.
        mine: uint8, this rank's bytes.
        num_bytes: size of every rank's bytes, equal on all ranks.
    """
    import torch
    import torch.distributed as dist

    group, longest = _group(world), max(num_bytes)
    receives = call.root in (-1, world.rank)
    everything = torch.empty(world.world_size if receives else 0, longest, dtype=torch.uint8, device=mine.device)
    if longest:
        padded = mine if len(mine) == longest else torch.nn.functional.pad(mine, (0, longest - len(mine)))
        parts = list(everything.unbind()) if receives else None
        if call.root < 0:
            run_transport(world, call, lambda: dist.all_gather(parts, padded, group=group))
        else:
            run_transport(world, call, lambda: dist.gather(padded, parts, group=group, group_dst=call.root))
    return [everything[rank, :length] for rank, length in enumerate(num_bytes)] if receives else None


def broadcast_raw(world: World, call: Call, mine: bytes, num_bytes: int) -> bytes:
    """Return rank `call.root`'s bytes, `num_bytes` of them, on every rank."""
    return _bytes(broadcast_bytes(world, call, _tensor(world, mine), num_bytes))


def gather_raw(world: World, call: Call, mine: bytes, num_bytes: list[int]) -> list[bytes] | None:
    """Return every rank's bytes like `gather_bytes`."""
    arrived = gather_bytes(world, call, _tensor(world, mine), num_bytes)
    return None if arrived is None else [_bytes(raw) for raw in arrived]


def _group(world: World) -> Any:
    assert isinstance(world.channel, Channel)
    return world.channel.group


def _tensor(world: World, data: bytes) -> torch.Tensor:
    import torch

    assert isinstance(world.channel, Channel)
    if not data:
        return torch.empty(0, dtype=torch.uint8, device=world.channel.device)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(world.channel.device)


def _bytes(raw: torch.Tensor) -> bytes:
    return raw.cpu().numpy().tobytes()
