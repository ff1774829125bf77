"""`reduce` and `all_reduce` of trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rankwise.world.collectives.channel import Channel
from rankwise.world.collectives.handshake import INLINE, Call, Contribution, Frame, call_place, exchange, run_transport
from rankwise.world.collectives.tree import Leaf, describe, flatten, rebuild
from rankwise.world.collectives.wire import Packed, bytes_of, check_leaf, decode, encode, fold, pack, unpack

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReduceContribution(Contribution):
    """This rank's tree, encoded."""

    leaves: list[Leaf]
    packed: Packed

    @property
    def payload_bytes(self) -> int:
        return self.packed.num_bytes

    def payload(self) -> bytes:
        if self.payload_bytes > INLINE:
            return b""
        return b"".join(bytes_of(buffer).cpu().numpy().tobytes() for buffer in self.packed.buffers)


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
    work: Any = run_transport(world, call, lambda: dist.all_reduce(sums, group=channel.group, async_op=True))

    def finish() -> list[float]:
        run_transport(world, call, work.wait)
        return sums.tolist()

    return finish


def _prepare(world: World, tree: Any, call: Call) -> _ReduceContribution:
    call.check(world.world_size)
    leaves = flatten(tree)
    for leaf in leaves:
        check_leaf(leaf, call.reduce)
    flats = [encode(leaf, call.reduce) for leaf in leaves]
    if isinstance(world.channel, Channel) and world.channel.device != "cpu":
        flats = [flat.to(world.channel.device) if flat.device.type == "cpu" else flat for flat in flats]
    return _ReduceContribution(structure=describe(tree, leaves, ragged=False), leaves=leaves, packed=pack(flats))


def _reduce(world: World, tree: Any, call: Call) -> Any:
    if world.backend == "jax":
        from rankwise.world.collectives.key_trees import reduce_by_keys

        reduced = reduce_by_keys(world, tree, call)
        return reduced if call.root in (-1, world.rank) else None
    if world.channel is None:
        mine = _prepare(world, tree, call)
        buffers = mine.packed.buffers
    else:
        mine, frames = exchange(world, call, lambda: _prepare(world, tree, call))
        small = mine.payload_bytes <= INLINE
        buffers = _fold(mine.packed, frames, call.reduce) if small else _reduce_buffers(world, call, mine)
    if mine.payload_bytes > INLINE and not _receives(world, call, mine):
        return None
    parts = unpack(mine.packed, buffers)
    values = [decode(flat, leaf, call.reduce, world.world_size) for flat, leaf in zip(parts, mine.leaves, strict=True)]
    return rebuild(tree, iter(values)) if call.root in (-1, world.rank) else None


def _receives(world: World, call: Call, mine: _ReduceContribution) -> bool:
    """Whether this rank receives the sums; of Python integers all ranks do, to raise together on overflow."""
    exact = call.reduce == "sum" and any(leaf.kind == "int" for leaf in mine.leaves)
    return exact or call.root in (-1, world.rank)


def _fold(packed: Packed, frames: list[Frame], op: str) -> list[torch.Tensor]:
    """Reduce the inline payloads in rank order, so that all ranks get the same bits."""
    import torch

    if not packed.num_bytes:
        return packed.buffers
    rows = torch.frombuffer(bytearray(b"".join(frame.payload for frame in frames)), dtype=torch.uint8)
    rows = rows.reshape(len(frames), -1)
    totals, start = [], 0
    for buffer in packed.buffers:
        stop = start + buffer.numel() * buffer.element_size()
        parts = rows[:, start:stop].clone(memory_format=torch.contiguous_format)
        totals.append(fold(list(parts.view(buffer.dtype).unbind()), op).to(buffer.device) if stop > start else buffer)
        start = stop
    return totals


def _reduce_buffers(world: World, call: Call, mine: _ReduceContribution) -> list[torch.Tensor]:
    """Reduce every buffer with one collective."""
    import torch.distributed as dist

    assert isinstance(world.channel, Channel)
    group = world.channel.group
    op = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}.get(call.reduce, dist.ReduceOp.SUM)
    everywhere = call.root < 0 or _receives(world, Call(call.op, call.place, call.reduce, -2), mine)
    for buffer in mine.packed.buffers:
        if not buffer.numel():
            continue
        start = (
            partial(dist.all_reduce, buffer, op, group=group)
            if everywhere
            else partial(dist.reduce, buffer, op=op, group=group, group_dst=call.root)
        )
        run_transport(world, call, start)
    return mine.packed.buffers
