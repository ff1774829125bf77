"""Find the world that this process already belongs to, no matter which library created it."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import weakref
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rankwise._process.cores import choose_threads, cpu_mask, usable_cores
from rankwise._process.place import Place, announced_place, find_place, num_local_ranks
from rankwise.errors import ConfigError, WorldError
from rankwise.world.collectives.channel import Channel, KeyChannel, frame_device
from rankwise.world.jax_state import jax_client, jax_numbers
from rankwise.world.value import World, make_world

if TYPE_CHECKING:
    import torch

_bound: World | None = None
_adopted: tuple[weakref.ref[Any], World] | None = None
_JAX_TIMEOUT = timedelta(seconds=600)


def set_bound_world(world: World | None) -> None:
    """Record the world that `bind` created, or None when it is gone."""
    global _bound  # noqa: PLW0603  (a process has one bound world)
    _bound = world


def _default_group() -> Any:
    """Return the initialised default group or None, without importing torch."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.group.WORLD


def refuse_import_by_worker(caller: str) -> None:
    """Check that this process is no worker of multiprocessing that imports the script of its parent.

    Such a worker (spawn, forkserver) has its parent's environment: it would take the place of its parent's rank.

    Raises:
        WorldError: it is one.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # multiprocessing.spawn asks for it, too
        raise WorldError(
            f"{caller} was called while a worker process imports the script: put what the script does under "
            '`if __name__ == "__main__":`, so that the worker finds its functions and classes without running it'
        )


def refuse_second_bind() -> None:
    """Check that `bind` may create a world in this process.

    Raises:
        WorldError: a world is already bound, or another library than Ray Train initialised the process group.
    """
    if _bound is not None and _bound.backend == "jax":
        raise WorldError(
            "World.init_jax() has made this process a rank of a JAX program: to use both, enter bind() first and call "
            "world.init_jax() inside it"
        )
    if _bound is not None:
        raise WorldError(
            "this process is already bound: leave the first `with rankwise.bind()` before the second, or use "
            "World.current() inside it"
        )
    if _default_group() is not None and not _in_ray_worker():
        raise WorldError(
            "the process group is already initialised (by Lightning, Accelerate or this script): use World.current(), "
            "which adopts it, instead of bind()"
        )


def _in_ray_worker() -> bool:
    """Whether this process is a worker of Ray Train, whose process group Ray has created; imports nothing."""
    ray_train, dist = sys.modules.get("ray.train"), sys.modules.get("torch.distributed")
    if ray_train is None or dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    try:
        context = ray_train.get_context()
        numbers = (context.get_world_rank(), context.get_world_size())
    except Exception:  # noqa: BLE001  (what Ray raises outside of a worker differs from version to version)
        return False
    return numbers == (dist.get_rank(), dist.get_world_size())


def ray_device() -> str:
    """Return the device that Ray has assigned to this worker."""
    from ray.train.torch import get_device

    return str(get_device())


def current_world() -> World:
    """See `World.current`."""
    found = known_world()
    if found is not None:
        return found
    place = announced_place(os.environ)
    return _single() if place is None else _announced(place)


@functools.cache
def _single() -> World:
    return World.single()


def joined_world(world: World | None, caller: str) -> World:
    """Return the world, or the current one, after a check that its ranks can communicate.

    Args:
        world: the ranks; None = `World.current()`.
        caller: name of the caller, for the message.

    Raises:
        ConfigError: it is no world.
        WorldError: a launcher started several ranks, but no process group was created, or the group was left.
    """
    world = current_world() if world is None else world
    if not isinstance(world, World):
        raise ConfigError(
            f"{caller} got {type(world).__name__} as world: pass the world of `with rankwise.bind() as world`, or none"
        )
    if isinstance(world.channel, Channel) and world.channel.group is None:
        raise WorldError(f"{caller} needs the process group of all ranks, which cannot be used: {world.channel.broken}")
    return world


@functools.lru_cache(maxsize=1)
def _announced(place: Place) -> World:
    """Return the world of a launcher's variables: loaders can use its rank and size, its collectives raise."""
    import torch

    why = (
        f"this process was started as rank {place.rank} of {place.world_size}, but there is no process group: put what "
        "the ranks do together inside `with rankwise.bind() as world:` (or call torch.distributed.init_process_group "
        "first); to work alone, pass world=World.single(), or unset the launcher's variables"
    )
    return make_world(
        replace(place, local_world_size=num_local_ranks(os.environ)),
        None,
        Channel(None, timedelta(0), broken=why),
        device=torch.device("cpu"),
        backend="none",
        threads=torch.get_num_threads(),
    )


def bound_world() -> World | None:
    """Return the world that `bind` or `World.init_jax` created, or None; imports nothing."""
    return _bound


def known_world() -> World | None:
    """Return the world that was created by any library, or None; imports nothing."""
    if (world := group_world() or _bound) is not None:
        return world
    client = jax_client()  # of JAX's distributed system that the user initialised
    return None if client is None else _adopt_jax(client)


def group_world() -> World | None:
    """Return the world of torch's default group, or None; imports nothing."""
    global _adopted  # noqa: PLW0603  (a process has one default group)
    group = _default_group()
    if group is None:
        _adopted = None
        return None
    if _bound is not None and isinstance(_bound.channel, Channel) and _bound.channel.group is group:
        return _bound
    if _adopted is None or _adopted[0]() is not group:
        _adopted = (weakref.ref(group), _adopt(group))
    return _adopted[1]


@functools.lru_cache(maxsize=1)
def _adopt_jax(client: Any) -> World:
    import jax

    rank, size = jax_numbers()
    return make_world(
        _place(rank, size),
        None,
        KeyChannel(client, "rankwise", rank, size, _JAX_TIMEOUT) if size > 1 else None,
        device=jax.local_devices()[0],
        backend="jax",
        threads=choose_threads(None, environ=os.environ, cores=usable_cores(len(cpu_mask())), sharers=1),
    )


def _adopt(group: Any) -> World:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    return make_world(
        _place(rank, size),
        None,
        Channel(group, _timeout(group), device=frame_device(group)) if size > 1 else None,
        device=_device(dist.get_backend_config(group)),
        backend=dist.get_backend_config(group),
        threads=torch.get_num_threads(),
    )


def _place(rank: int, size: int) -> Place:
    """Use the environment if it agrees with the group; else assume that all ranks are on one machine."""
    try:
        place = find_place(os.environ)
    except WorldError:
        place = Place()
    if (place.rank, place.world_size) == (rank, size):
        return place
    return Place(family="adopted", rank=rank, world_size=size, local_rank=rank, local_world_size=size)


def _device(backend_config: str) -> torch.device:
    import torch

    if "nccl" in backend_config and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _timeout(group: Any) -> timedelta:
    import torch

    for device in ("cpu", "cuda"):
        try:
            found = group._get_backend(torch.device(device)).options._timeout  # noqa: SLF001  (torch has no public way)
        except (RuntimeError, AttributeError):
            continue
        if isinstance(found, timedelta):
            return found
    return timedelta(seconds=600)
