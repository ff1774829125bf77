"""Opening and leaving torch's process group."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from rankwise.errors import WorldError
from rankwise.world.channel import Channel, close_all, frame_device
from rankwise.world.place import Place
from rankwise.world.small_store import store_trouble

__all__ = ["leave", "local_store", "open_group", "open_store", "prefixed"]


def local_store() -> Any:
    """Return a store inside this process, for a group of one."""
    import torch.distributed as dist

    return dist.HashStore()  # type: ignore[attr-defined]


def prefixed(store: Any, prefix: str) -> Any:
    """Return a view of the store for the group of this attempt alone."""
    import torch.distributed as dist

    return dist.PrefixStore(f"{prefix}/group", store)  # type: ignore[attr-defined]


def open_store(place: Place, timeout: timedelta) -> Any:
    """Return the TCP store of the ranks; rank 0 serves it unless the launcher's agent does.

    Raises:
        WorldError: the port is taken, or the server could not be reached in time.
    """
    import torch.distributed as dist

    serves = place.rank == 0 and not place.agent_store
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.master_addr, place.master_port, is_master=serves, timeout=timeout, wait_for_workers=False
        )
    except Exception as error:
        raise WorldError(f"{store_trouble(place, timeout)} ({error})") from error


def open_group(store: Any, place: Place, backend: str, device: str, timeout: timedelta) -> Channel:
    """Initialise the default process group.

    Raises:
        WorldError: torch could not build it.
    """
    import torch
    import torch.distributed as dist

    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
            device_id=torch.device(device) if device.startswith("cuda") and "nccl" in backend else None,
        )
    except Exception as error:
        leave(in_peace=False)
        raise WorldError(
            f"rank {place.rank} of {place.world_size} could not join the {backend} group on {device}: {error}"
        ) from error
    group = dist.group.WORLD
    return Channel(group, timeout, device=frame_device(group))


def leave(*, in_peace: bool) -> None:
    """Destroy the default group and all others; not in peace: abort them, which waits for nobody."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if in_peace or abort is None:
        close_all()
        dist.destroy_process_group()
        return
    # we are here because of an exception: a second one from the ruins of the group must not hide it
    with contextlib.suppress(Exception):
        abort()
