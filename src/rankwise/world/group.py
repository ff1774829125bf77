"""Open and leave torch's process group."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

from rankwise._process.addresses import family_of
from rankwise._process.place import Place, loopback_address
from rankwise._shutdown import let_gloo_finish
from rankwise.errors import WorldError
from rankwise.world.collectives.channel import Channel, close_all, frame_device
from rankwise.world.rendezvous.addresses import await_listener, listening_address, store_error, warn_of_public

_INTERFACE = "GLOO_SOCKET_IFNAME"
_STORE_FILE = "RANKWISE_STORE_FILE"
_LEAVE_S = 1.0
_LISTENER_S = 10.0
_CONNECTED = "rankwise/connected"  # in the group's store: the ranks that have connected to all others,
_COMPLETE = "rankwise/complete"  # whether all have,
_ACKNOWLEDGED = "rankwise/acknowledged"  # and the ranks that know it
_CONNECT_S = 10.0
# the interface set by bind, kept while the group lives: groups created later need it too
_interfaces_set: list[str] = []
_served_stores: list[tuple[Any, int]] = []  # on rank 0: store and number of ranks of the open group


def local_store() -> Any:
    """Return an in-process store for a group of one rank."""
    import torch.distributed as dist

    return dist.HashStore()  # type: ignore[attr-defined]


def prefixed(store: Any, prefix: str) -> Any:
    """Return a view of the store with a prefix for the group of this attempt."""
    import torch.distributed as dist

    return dist.PrefixStore(f"{prefix}/group", store)  # type: ignore[attr-defined]


def open_store(place: Place, timeout: timedelta) -> Any:
    """Return the ranks' TCP store; rank 0 serves it unless the launcher's agent does.

    If MASTER_ADDR is an address and not a name, the store listens on this address only; with 127.0.0.1, no other
    machine can connect. If the launcher sets a file instead (RANKWISE_STORE_FILE), the ranks use a store in that file.

    Raises:
        WorldError: the port is in use, the server could not be reached in time, or the file is not usable.
    """
    import torch.distributed as dist

    file = os.environ.get(_STORE_FILE)
    if file:
        return _file_store(file, place, timeout)
    serves = place.rank == 0 and not place.agent_store
    own = listening_address(place.master_addr) if serves else ""
    if serves:
        warn_of_public(place.master_addr, "torch's store")
    elif not place.agent_store:  # an agent listens before it starts the ranks
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
        raise WorldError(f"{store_error(place, timeout)} ({error})") from error


def _file_store(file: str, place: Place, timeout: timedelta) -> Any:
    """Return the store in a file; each attempt has its own file, because stale keys would be read as valid."""
    import torch.distributed as dist

    path = f"{file}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        store = dist.FileStore(path, -1)  # type: ignore[attr-defined]  # the launcher removes it, whatever becomes of us
        store.set_timeout(timeout)
        store.add("rankwise/opened", 1)  # fails here if the file system has no locks
    except Exception as error:
        raise WorldError(
            f"rank {place.rank} of {place.world_size} cannot meet the others through the file {path} ({error}): all "
            "ranks must be able to write to its folder, and its file system must support locks"
        ) from error
    return store


def _bound_socket(address: str, port: int) -> int:
    """Return a bound descriptor that the store listens on and closes; by default it listens on all addresses."""
    with socket.socket(family_of(address), socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the launcher holds the port
        bound.bind((address, port))
        return bound.detach()


def _use_loopback(place: Place) -> None:
    """Make gloo listen on loopback only; by default it uses the address of the host name."""
    interface = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")
    if interface and loopback_address(place.master_addr) and _INTERFACE not in os.environ:
        os.environ[_INTERFACE] = interface
        _interfaces_set.append(interface)


def open_group(store: Any, place: Place, backend: str, device: str, timeout: timedelta) -> Channel:
    """Initialise the default process group.

    Raises:
        WorldError: torch could not create it.
    """
    import torch
    import torch.distributed as dist

    _use_loopback(place)
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
            device_id=torch.device(device) if device.startswith("cuda") and "nccl" in backend else None,
        )
        if place.world_size > 1:
            _await_connections(store, place.world_size)
            if place.rank == 0:
                _served_stores.append((store, place.world_size))
    except Exception as error:
        leave(graceful=False)
        raise WorldError(
            f"rank {place.rank} of {place.world_size} could not join the {backend} group on {device}: {error}"
        ) from error
    group = dist.group.WORLD
    return Channel(group, timeout, device=frame_device(group))


def _await_connections(store: Any, world_size: int) -> None:
    """Wait until all ranks have connected to each other, up to a limit.

    A rank has joined as soon as its own connections stand. If its work is done at once and it leaves, a slower rank
    that is still accepting them would find them closed by their peer, and could not join.
    """
    if store.add(_CONNECTED, 1) == world_size:
        store.set(_COMPLETE, "1")
    with contextlib.suppress(Exception):  # each torch has its own: a rank has died, which the first collective reports
        store.wait([_COMPLETE], timedelta(seconds=_CONNECT_S))
    store.add(_ACKNOWLEDGED, 1)


def _await_readers(store: Any, world_size: int) -> None:
    """Wait on rank 0, which may serve the store, until the others have read from it what they wait for in joining."""
    until = time.monotonic() + _CONNECT_S
    with contextlib.suppress(Exception):  # the launcher's agent serves it, and has ended
        while store.add(_ACKNOWLEDGED, 0) < world_size and time.monotonic() < until:
            time.sleep(0.005)


def leave(*, graceful: bool) -> None:
    """Destroy the default group and all others; without `graceful` abort them, which does not wait for other ranks."""
    import torch.distributed as dist

    if _interfaces_set and os.environ.get(_INTERFACE) == _interfaces_set.pop():
        del os.environ[_INTERFACE]
    served = _served_stores.pop() if _served_stores else None
    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if graceful or abort is None:
        if served is not None:
            _await_readers(*served)
        let_gloo_finish()  # freeing a group waits for its threads with the interpreter's lock, which they may need
        close_all()
        dist.destroy_process_group()
        return
    # an exception led here: a second one from the broken group must not hide it
    with contextlib.suppress(Exception):
        abort()
    # gloo closes its connections only when the last reference is dropped, and other ranks notice the failure by that.
    # This waits for gloo's threads, which may be in a collective of a backward pass: do it in a thread, with a limit.
    closer = threading.Thread(target=close_all, name="rankwise-leave", daemon=True)
    try:
        closer.start()
    except RuntimeError:  # no thread could be started: probably out of memory, which may be the original failure
        return
    closer.join(_LEAVE_S)
