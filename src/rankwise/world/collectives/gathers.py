"""`broadcast`, `gather` and `all_gather` of trees, the last also with gradients."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError
from rankwise.world.collectives.channel import Channel
from rankwise.world.collectives.handshake import INLINE, Call, Contribution, Frame, call_place, exchange
from rankwise.world.collectives.objects import broadcast_bytes, gather_bytes, gather_raw
from rankwise.world.collectives.tree import Leaf, describe, flatten, rebuild
from rankwise.world.collectives.wire import bytes_of, flat_of, from_bytes, value_of

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World


@dataclass(frozen=True, slots=True, kw_only=True)
class _GatherContribution(Contribution):
    """This rank's tree as bytes.

    Attributes:
        leaves: leaves of the tree.
        flats: flat tensors of the leaves.
        lengths: int64, length of the first axis of each leaf that has one (ragged calls only); sent first.
        sends: whether this rank's bytes are sent.
    """

    leaves: list[Leaf]
    flats: list[torch.Tensor]
    lengths: np.ndarray[Any, np.dtype[np.int64]]
    sends: bool = True

    @property
    def payload_bytes(self) -> int:
        return self.lengths.nbytes + (sum(flat.nbytes for flat in self.flats) if self.sends else 0)

    def payload(self) -> bytes:
        head = self.lengths.tobytes()
        if not self.sends or self.payload_bytes > INLINE:
            return head
        return head + b"".join(bytes_of(flat).cpu().numpy().tobytes() for flat in self.flats)

    @property
    def devices(self) -> list[str]:
        """Return the devices that hold bytes, each once, in a fixed order."""
        return sorted({leaf.device for leaf in self.leaves})


def broadcast(world: World, tree: Any, src: int) -> Any:
    """See `World.broadcast`."""
    call = Call("broadcast", call_place(), root=src)
    if world.backend == "jax":
        return _by_keys(world, tree, call, ragged=False)[src]
    if world.channel is None:
        mine = _prepare(world, tree, call, ragged=False)
        return _assemble(tree, mine, _local(mine), mine.lengths)
    mine, frames = exchange(world, call, lambda: _prepare(world, tree, call, ragged=False))
    sent = frames[src]
    if sent.is_whole:
        return _assemble(tree, mine, _split_inline(mine, sent, mine.lengths), mine.lengths)
    received = {}
    for device in mine.devices:
        own = _concatenated(world, mine, device)
        received[device] = broadcast_bytes(world, call, own, len(own))
    return _assemble(tree, mine, _split(mine, received, mine.lengths), mine.lengths)


def gather(world: World, tree: Any, dst: int) -> list[Any] | None:
    """See `World.gather`."""
    return _gather(world, tree, Call("gather", call_place(), root=dst))


def all_gather(world: World, tree: Any, *, grad: bool) -> list[Any]:
    """See `World.all_gather`."""
    if grad and world.backend == "jax":
        raise ConfigError(
            "all_gather(grad=True) supports torch's gradients only: in a JAX program, gather inside the computation, "
            "with jax.lax.all_gather under jax.shard_map"
        )
    if grad:
        return _all_gather_with_grad(world, tree)
    return _gather(world, tree, Call("all_gather", call_place())) or []


def _gather(world: World, tree: Any, call: Call) -> list[Any] | None:
    if world.backend == "jax":
        gathered = _by_keys(world, tree, call, ragged=True)
        return gathered if call.root in (-1, world.rank) else None
    if world.channel is None:
        mine = _prepare(world, tree, call, ragged=True)
        return [_assemble(tree, mine, _local(mine), mine.lengths)]
    mine, frames = exchange(world, call, lambda: _prepare(world, tree, call, ragged=True))
    lengths = _all_lengths(world, call, mine, frames)
    if all(frame.is_whole for frame in frames):
        pieces = [_split_inline(mine, frame, row) for frame, row in zip(frames, lengths, strict=True)]
    else:
        pieces = _collect(world, call, mine, lengths)
    if call.root not in (-1, world.rank):
        return None
    return [_assemble(tree, mine, parts, row) for parts, row in zip(pieces, lengths, strict=True)]


def _by_keys(world: World, tree: Any, call: Call, *, ragged: bool) -> list[Any]:
    from rankwise.world.collectives.key_trees import gather_by_keys

    return gather_by_keys(world, tree, call, ragged=ragged)


def _prepare(world: World, tree: Any, call: Call, *, ragged: bool) -> _GatherContribution:
    call.check(world.world_size)
    leaves = flatten(tree)
    lengths = [leaf.shape[0] for leaf in leaves if leaf.shape] if ragged else []
    return _GatherContribution(
        structure=describe(tree, leaves, ragged=ragged),
        leaves=leaves,
        flats=[flat_of(leaf) for leaf in leaves],
        lengths=np.array(lengths, np.int64),
        sends=ragged or world.rank == call.root,
    )


def _all_lengths(
    world: World, call: Call, mine: _GatherContribution, frames: list[Frame]
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return every rank's lengths, from the frames if they fit."""
    num_bytes = mine.lengths.nbytes
    raws: list[Any] = [frame.payload[:num_bytes] for frame in frames]
    if num_bytes > INLINE:
        everywhere = Call(call.op, call.place)
        raws = gather_raw(world, everywhere, mine.lengths.tobytes(), [num_bytes] * world.world_size) or []
    return [np.frombuffer(raw, np.int64) for raw in raws]


def _collect(
    world: World, call: Call, mine: _GatherContribution, lengths: list[np.ndarray[Any, np.dtype[np.int64]]]
) -> list[list[torch.Tensor]]:
    """Gather the bytes of all ranks, device by device."""
    received: list[dict[str, torch.Tensor]] = [{} for _ in lengths]
    for device in mine.devices:
        sizes = [sum(_sizes(mine, row, device)) for row in lengths]
        for rank, raw in enumerate(gather_bytes(world, call, _concatenated(world, mine, device), sizes) or []):
            received[rank][device] = raw
    if call.root not in (-1, world.rank):
        return []
    return [_split(mine, raw, row) for raw, row in zip(received, lengths, strict=True)]


def _shapes(mine: _GatherContribution, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, ...]]:
    """Return the shapes of a rank's leaves from its lengths; without lengths, shapes are equal on all ranks."""
    if not len(lengths):
        return [leaf.shape for leaf in mine.leaves]
    remaining = iter(lengths.tolist())
    return [(next(remaining), *leaf.shape[1:]) if leaf.shape else () for leaf in mine.leaves]


def _sizes(
    mine: _GatherContribution, lengths: np.ndarray[Any, np.dtype[np.int64]], device: str | None = None
) -> list[int]:
    """Return the sizes of a rank's leaves in bytes, of all leaves or of those on one device."""
    shapes = _shapes(mine, lengths)
    return [
        math.prod(shape) * flat.element_size()
        for shape, flat, leaf in zip(shapes, mine.flats, mine.leaves, strict=True)
        if device in (None, leaf.device)
    ]


def _concatenated(world: World, mine: _GatherContribution, device: str) -> torch.Tensor:
    """Return the bytes of a device's leaves in one tensor, on a device that the group supports."""
    import torch

    assert isinstance(world.channel, Channel)
    parts = [bytes_of(flat) for flat, leaf in zip(mine.flats, mine.leaves, strict=True) if leaf.device == device]
    whole = torch.cat(parts)
    return whole.to(world.channel.device) if device == "cpu" else whole


def _local(mine: _GatherContribution) -> list[torch.Tensor]:
    return [flat.clone() for flat in mine.flats]


def _split_inline(
    mine: _GatherContribution, frame: Frame, lengths: np.ndarray[Any, np.dtype[np.int64]]
) -> list[torch.Tensor]:
    import torch

    start, parts = lengths.nbytes, []
    for size, flat in zip(_sizes(mine, lengths), mine.flats, strict=True):
        raw = bytearray(frame.payload[start : start + size])
        start += size
        parts.append(torch.frombuffer(raw, dtype=flat.dtype) if size else flat.new_empty(0, device="cpu"))
    return parts


def _split(
    mine: _GatherContribution, received: dict[str, torch.Tensor], lengths: np.ndarray[Any, np.dtype[np.int64]]
) -> list[torch.Tensor]:
    starts, parts = dict.fromkeys(received, 0), []
    for size, flat, leaf in zip(_sizes(mine, lengths), mine.flats, mine.leaves, strict=True):
        start = starts[leaf.device]
        starts[leaf.device] += size
        parts.append(from_bytes(received[leaf.device][start : start + size], flat.dtype))
    return parts


def _assemble(
    tree: Any, mine: _GatherContribution, parts: list[torch.Tensor], lengths: np.ndarray[Any, np.dtype[np.int64]]
) -> Any:
    shapes = _shapes(mine, lengths)
    return rebuild(tree, (value_of(*three) for three in zip(parts, mine.leaves, shapes, strict=True)))


def _all_gather_with_grad(world: World, tree: Any) -> list[Any]:
    """Gather like `World.all_gather`; gradients flow back to tensors that require them.

    The backward pass is a collective: every rank must run it, through all results. Rank r's input gets the sum over
    ranks of the gradients of part r.

    Raises:
        DesyncError: a tensor requires a gradient on some ranks only, so the backward pass would hang.
    """
    leaves = flatten(tree)
    tracked = [i for i, leaf in enumerate(leaves) if leaf.kind == "tensor" and leaf.value.requires_grad]
    if world.channel is not None:
        structure = f"gradients of the leaves {tracked}"
        exchange(world, Call("grad_gather", call_place()), lambda: Contribution(structure=structure))
    gathered = world.all_gather([leaf.value for leaf in leaves])
    if not tracked:
        return [rebuild(tree, iter(values)) for values in gathered]
    return _with_grad(world, tree, leaves, tracked, gathered)


def _with_grad(world: World, tree: Any, leaves: list[Leaf], tracked: list[int], gathered: list[list[Any]]) -> list[Any]:
    inputs = [leaves[i].value for i in tracked]
    outputs = [values[i] for values in gathered for i in tracked]
    linked = iter(_gathered_function().apply(world, outputs, *inputs))
    for values in gathered:
        for i in tracked:
            values[i] = next(linked)
    return [rebuild(tree, iter(values)) for values in gathered]


@functools.cache
def _gathered_function() -> Any:
    """Return the autograd function; created late, because its base class needs torch."""
    import torch
    from torch.autograd.function import once_differentiable

    class Gathered(torch.autograd.Function):
        """Forward returns the gathered parts; backward sums the gradients over ranks and returns this rank's part."""

        @staticmethod
        def forward(ctx: Any, world: World, outputs: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
            ctx.world, ctx.num_inputs = world, len(inputs)
            return tuple(output.view_as(output) for output in outputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            sums = ctx.world.all_reduce(list(grads))
            first = ctx.world.rank * ctx.num_inputs
            return (None, None, *sums[first : first + ctx.num_inputs])

    return Gathered
