"""Opening and leaving torch's process group."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from datetime import timedelta
from typing import Any

from rankwise._process.place import Place, loopback_address
from rankwise.errors import WorldError
from rankwise.world.channel import Channel, close_all, frame_device
from rankwise.world.listener import await_listener
from rankwise.world.small_store import listening_address, store_trouble

__all__ = ["leave", "local_store", "open_group", "open_store", "prefixed"]


_INTERFACE = "GLOO_SOCKET_IFNAME"
_STORE_FILE = "RANKWISE_STORE_FILE"
_LEAVE_S = 1.0
_LISTENER_S = 10.0
_chosen: list[str] = []  # by us, for as long as the group lives: groups that are made later need it, too


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

    It listens on the address by which the ranks know rank 0, if that is an address and not a name: if all of them are
    on this machine, nobody else is served. Where the launcher names a file instead (RANKWISE_STORE_FILE), they meet
    through that.

    Raises:
        WorldError: the port is taken, the server could not be reached in time, or the file cannot be used.
    """
    import torch.distributed as dist

    file = os.environ.get(_STORE_FILE)
    if file:
        return _file_store(file, place, timeout)
    serves = place.rank == 0 and not place.agent_store
    own = listening_address(place.master_addr) if serves else ""
    if serves:
        from rankwise.world.strangers import warn_of_public  # who loads data alone serves nobody

        warn_of_public(place.master_addr, "torch's store")
    elif not place.agent_store:  # an agent listens before it starts ranks
        await_listener(place.master_addr, place.master_port, min(_LISTENER_S, timeout.total_seconds()))
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.master_addr,
            place.master_port,
            is_master=serves,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=_bound_socket(own, place.master_port) if own else None,
        )
    except Exception as error:
        raise WorldError(f"{store_trouble(place, timeout)} ({error})") from error


def _file_store(file: str, place: Place, timeout: timedelta) -> Any:
    """Return the store in a file, one for each attempt: what an earlier one has left there would be believed."""
    import torch.distributed as dist

    path = f"{file}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        store = dist.FileStore(path, -1)  # type: ignore[attr-defined]  # the launcher removes it, whatever becomes of us
        store.set_timeout(timeout)
        store.add("rankwise/opened", 1)  # a file system without locks says so now
    except Exception as error:
        raise WorldError(
            f"rank {place.rank} of {place.world_size} cannot meet the others through the file {path} ({error}): all "
            "ranks must be able to write to its folder, and its file system must know locks"
        ) from error
    return store


def _bound_socket(address: str, port: int) -> int:
    """Return a descriptor for the store to listen on, and to close; left alone it would listen on all addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a launcher holds the port for us
        bound.bind((address, port))
        return bound.detach()


def _stay_on_this_machine(place: Place) -> None:
    """Have gloo listen where only this machine reaches it; by itself it takes the address of the host's name."""
    interface = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")
    if interface and loopback_address(place.master_addr) and _INTERFACE not in os.environ:
        os.environ[_INTERFACE] = interface
        _chosen.append(interface)


def open_group(store: Any, place: Place, backend: str, device: str, timeout: timedelta) -> Channel:
    """Initialise the default process group.

    Raises:
        WorldError: torch could not build it.
    """
    import torch
    import torch.distributed as dist

    _stay_on_this_machine(place)
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

    if _chosen and os.environ.get(_INTERFACE) == _chosen.pop():
        del os.environ[_INTERFACE]
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
    # gloo closes its connections, which tells the others, with the last reference only. That waits for its threads, and
    # one of them may be in a collective that a backward pass began: whoever has failed does not wait for it.
    letting_go = threading.Thread(target=close_all, name="rankwise-leave", daemon=True)
    try:
        letting_go.start()
    except RuntimeError:  # no thread to be had: memory is used up, which may be what we are here for
        return
    letting_go.join(_LEAVE_S)
