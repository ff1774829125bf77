"""Collectives of picklable objects, and the bytes of any collective that do not fit into its frame.

The ranks of one job trust each other, so they unpickle what the others send.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rankwise.errors import ConfigError
from rankwise.world.collectives.channel import Channel
from rankwise.world.collectives.handshake import Call, Contribution, call_place, exchange, run_transport

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World

T = TypeVar("T")


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


def broadcast_object(world: World, obj: Any, src: int) -> Any:
    """See `World.broadcast_object`."""
    return pickle.loads(_broadcast_pickled(world, Call("broadcast_object", call_place(), root=src), lambda: obj))  # noqa: S301


def from_main(world: World, make: Callable[[], T]) -> T:
    """See `World.from_main`."""
    if world.channel is None:
        return make()
    made: list[T] = []

    def keep() -> T:
        made.append(make())
        return made[0]

    data = _broadcast_pickled(world, Call("from_main", call_place(), root=0), keep)
    # the main rank returns its own object
    return made[0] if made else cast("T", pickle.loads(data))  # noqa: S301


def _broadcast_pickled(world: World, call: Call, make: Callable[[], Any]) -> bytes:
    """Return the pickled object of the root, on every rank; only the root makes one."""

    def prepare() -> Contribution:
        call.check(world.world_size)
        return _pickled(make()) if world.rank == call.root else Contribution()

    if world.channel is None:
        return prepare().data
    mine, frames = exchange(world, call, prepare)
    sent = frames[call.root]
    if sent.is_whole:
        return bytes(sent.payload)
    return broadcast_raw(world, call, mine.data, sent.payload_bytes)


def gather_object(world: World, obj: Any, dst: int) -> list[Any] | None:
    """See `World.gather_object`."""
    return _gather(world, obj, Call("gather_object", call_place(), root=dst))


def all_gather_object(world: World, obj: Any) -> list[Any]:
    """See `World.all_gather_object`."""
    return _gather(world, obj, Call("all_gather_object", call_place())) or []


def _gather(world: World, obj: Any, call: Call) -> list[Any] | None:
    def prepare() -> Contribution:
        call.check(world.world_size)
        return _pickled(obj)

    return gather_pickled(world, call, prepare, dst=call.root)


def gather_pickled(world: World, call: Call, prepare: Callable[[], Contribution], *, dst: int = -1) -> list[Any] | None:
    """Return what all ranks have pickled, by rank; None on other ranks than `dst`, if it is one.

    Args:
        world: the world.
        call: the call that this belongs to.
        prepare: returns this rank's pickled object; if it raises, every rank raises.
        dst: the rank that receives, -1 for all.
    """
    if world.channel is None:
        return [pickle.loads(prepare().data)]  # noqa: S301
    mine, frames = exchange(world, call, prepare)
    if all(frame.is_whole for frame in frames):
        arrived = [bytes(frame.payload) for frame in frames] if dst in (-1, world.rank) else None
    else:
        sizes = [frame.payload_bytes for frame in frames]
        arrived = gather_raw(world, replace(call, root=dst), mine.data, sizes)
    return None if arrived is None else [pickle.loads(raw) for raw in arrived]  # noqa: S301


def _pickled(obj: Any) -> Contribution:
    try:
        return Contribution(data=pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise ConfigError(f"the object, a {type(obj).__name__}, cannot be pickled: {error}") from error
