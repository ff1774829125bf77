"""Collectives of picklable objects; the ranks of one job trust each other, so they unpickle what the others send."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rankwise.errors import ConfigError
from rankwise.world.collectives.handshake import Call, Contribution, call_place, exchange
from rankwise.world.collectives.transfer import broadcast_raw, gather_raw

if TYPE_CHECKING:
    from rankwise.world.value import World

T = TypeVar("T")


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
