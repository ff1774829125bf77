"""`reduce` and `all_reduce` of trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.world.collectives.channel import Channel
from rankwise.world.collectives.handshake import INLINE, Call, Frame, Offer, call_place, carry, exchange
from rankwise.world.collectives.tree import Leaf, describe, flatten, rebuild
from rankwise.world.collectives.wire import Parcel, bytes_of, check_leaf, decode, encode, fold, pack, unpack

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World

__all__ = ["all_reduce", "reduce", "start_sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summands(Offer):
    """This rank's tree, encoded."""

    leaves: list[Leaf]
    parcel: Parcel

    @property
    def payload_bytes(self) -> int:
        return self.parcel.num_bytes

    def payload(self) -> bytes:
        if self.payload_bytes > INLINE:
            return b""
        return b"".join(bytes_of(buffer).cpu().numpy().tobytes() for buffer in self.parcel.buffers)


def all_reduce(world: World, tree: Any, op: str) -> Any:
    """See `World.all_reduce`."""
    return _reduce(world, tree, Call("all_reduce", call_place(), reduce=str(op)))


def reduce(world: World, tree: Any, op: str, dst: int) -> Any:
    """See `World.reduce`."""
    return _reduce(world, tree, Call("reduce", call_place(), reduce=str(op), root=dst))


def start_sum(world: World, numbers: Sequence[float]) -> Callable[[], list[float]]:
    """Start an asynchronous sum over the ranks; return a function that waits for the sums, bitwise equal on all ranks.

    Every rank must start it at the same position among its collectives; until the wait it may compute and call others.
    It is for use at every step: unlike `all_reduce` it does not check that the ranks make the same call, which would
    cost ten times as much.

    Raises:
        WorldError: the group is lost: a rank died or is late by more than the timeout.
    """
    import torch
    import torch.distributed as dist

    channel = world.channel
    if not isinstance(channel, Channel):
        done = list(_reduce(world, list(numbers), Call("all_reduce", call_place(), reduce="sum")))
        return lambda: done
    call = Call("all_reduce", "a step", reduce="sum")
    sums = torch.tensor(numbers, dtype=torch.float64, device=channel.device)
    work: Any = carry(world, call, lambda: dist.all_reduce(sums, group=channel.group, async_op=True))

    def finish() -> list[float]:
        carry(world, call, work.wait)
        return sums.tolist()

    return finish


def _prepare(world: World, tree: Any, call: Call) -> _Summands:
    call.check(world.world_size)
    leaves = flatten(tree)
    for leaf in leaves:
        check_leaf(leaf, call.reduce)
    flats = [encode(leaf, call.reduce) for leaf in leaves]
    if isinstance(world.channel, Channel) and world.channel.device != "cpu":
        flats = [flat.to(world.channel.device) if flat.device.type == "cpu" else flat for flat in flats]
    return _Summands(structure=describe(tree, leaves, ragged=False), leaves=leaves, parcel=pack(flats))


def _reduce(world: World, tree: Any, call: Call) -> Any:
    if world.backend == "jax":
        from rankwise.world.collectives.key_trees import reduce_by_keys

        reduced = reduce_by_keys(world, tree, call)
        return reduced if call.root in (-1, world.rank) else None
    if world.channel is None:
        mine = _prepare(world, tree, call)
        buffers = mine.parcel.buffers
    else:
        mine, frames = exchange(world, call, lambda: _prepare(world, tree, call))
        small = mine.payload_bytes <= INLINE
        buffers = _fold(mine.parcel, frames, call.reduce) if small else _travel(world, call, mine)
    if mine.payload_bytes > INLINE and not _receives(world, call, mine):
        return None
    parts = unpack(mine.parcel, buffers)
    values = [decode(flat, leaf, call.reduce, world.world_size) for flat, leaf in zip(parts, mine.leaves, strict=True)]
    return rebuild(tree, iter(values)) if call.root in (-1, world.rank) else None


def _receives(world: World, call: Call, mine: _Summands) -> bool:
    """Whether this rank receives the sums; of Python integers all ranks do, to raise together on overflow."""
    exact = call.reduce == "sum" and any(leaf.kind == "int" for leaf in mine.leaves)
    return exact or call.root in (-1, world.rank)


def _fold(parcel: Parcel, frames: list[Frame], op: str) -> list[torch.Tensor]:
    """Reduce the inline payloads in rank order, so that all ranks get the same bits."""
    import torch

    if not parcel.num_bytes:
        return parcel.buffers
    rows = torch.frombuffer(bytearray(b"".join(frame.payload for frame in frames)), dtype=torch.uint8)
    rows = rows.reshape(len(frames), -1)
    totals, start = [], 0
    for buffer in parcel.buffers:
        stop = start + buffer.numel() * buffer.element_size()
        parts = rows[:, start:stop].clone(memory_format=torch.contiguous_format)
        totals.append(fold(list(parts.view(buffer.dtype).unbind()), op).to(buffer.device) if stop > start else buffer)
        start = stop
    return totals


def _travel(world: World, call: Call, mine: _Summands) -> list[torch.Tensor]:
    """Reduce every buffer with one collective."""
    import torch.distributed as dist

    assert isinstance(world.channel, Channel)
    group = world.channel.group
    op = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}.get(call.reduce, dist.ReduceOp.SUM)
    everywhere = call.root < 0 or _receives(world, Call(call.op, call.place, call.reduce, -2), mine)
    for buffer in mine.parcel.buffers:
        if not buffer.numel():
            continue
        if everywhere:
            carry(world, call, lambda buffer=buffer: dist.all_reduce(buffer, op, group=group))  # type: ignore[misc]
        else:
            carry(world, call, lambda buffer=buffer: dist.reduce(buffer, op=op, group=group, group_dst=call.root))  # type: ignore[misc]
    return mine.parcel.buffers
