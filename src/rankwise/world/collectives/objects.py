"""Collectives of picklable objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rankwise.errors import ConfigError
from rankwise.world.collectives.handshake import INLINE, Call, Frame, Message, call_place, exchange
from rankwise.world.collectives.reductions import check_root
from rankwise.world.collectives.transfer import broadcast_raw, gather_raw

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["all_gather_object", "broadcast_object", "from_main", "gather_object"]

T = TypeVar("T")


def broadcast_object(world: World, obj: Any, src: int) -> Any:
    """See `World.broadcast_object`."""
    call = Call("broadcast_object", call_place(), root=src)

    def prepare() -> Message:
        check_root(world, src, "src")
        return _pickled(obj) if world.rank == src else Message()

    if world.channel is None:
        return pickle.loads(prepare().data)  # noqa: S301  (pickled one line above)
    mine, frames = exchange(world, call, prepare)
    if frames[src].payload_bytes <= INLINE:
        return pickle.loads(frames[src].payload)  # noqa: S301  (ranks of one job trust each other)
    return pickle.loads(broadcast_raw(world, call, mine.data, frames[src].payload_bytes))  # noqa: S301


def from_main(world: World, make: Callable[[], T]) -> T:
    """See `World.from_main`."""
    if world.channel is None:
        return make()
    call = Call("from_main", call_place(), root=0)
    made: list[T] = []

    def prepare() -> Message:
        if world.rank != 0:
            return Message()
        made.append(make())
        return _pickled(made[0])

    mine, frames = exchange(world, call, prepare)
    size = frames[0].payload_bytes
    data = frames[0].payload if size <= INLINE else broadcast_raw(world, call, mine.data, size)
    if made:  # the main rank returns its own object
        return made[0]
    return cast("T", pickle.loads(data))  # noqa: S301


def gather_object(world: World, obj: Any, dst: int) -> list[Any] | None:
    """See `World.gather_object`."""
    return _gather(world, obj, Call("gather_object", call_place(), root=dst))


def all_gather_object(world: World, obj: Any) -> list[Any]:
    """See `World.all_gather_object`."""
    return _gather(world, obj, Call("all_gather_object", call_place())) or []


def _gather(world: World, obj: Any, call: Call) -> list[Any] | None:
    def prepare() -> Message:
        if call.op == "gather_object":
            check_root(world, call.root, "dst")
        return _pickled(obj)

    if world.channel is None:
        return [pickle.loads(prepare().data)]  # noqa: S301
    mine, frames = exchange(world, call, prepare)
    if all(frame.payload_bytes <= INLINE for frame in frames):
        return _from_frames(frames) if call.root in (-1, world.rank) else None
    arrived = gather_raw(world, call, mine.data, [frame.payload_bytes for frame in frames])
    return None if arrived is None else [pickle.loads(raw) for raw in arrived]  # noqa: S301


def _from_frames(frames: list[Frame]) -> list[Any]:
    return [pickle.loads(frame.payload) for frame in frames]  # noqa: S301


def _pickled(obj: Any) -> Message:
    try:
        return Message(pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise ConfigError(f"the object, a {type(obj).__name__}, cannot be pickled: {error}") from error
