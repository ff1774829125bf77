"""`World.init_jax`: initialise JAX's distributed system from the launcher's variables, without torch.

Rank 0 chooses the address of JAX's coordinator: a new free port, held until JAX uses it. At exit, JAX runs a barrier of
all processes, so that none leaves while others still need it. A failed rank would wait there for minutes for ranks that
wait for it in a computation. So it must exit without the barrier; the others then lose their connection to it and fail
too.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import random
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any

from rankwise._process.addresses import address_towards, family_of, is_own, resolve
from rankwise._process.cores import choose_threads, cpu_mask, usable_cores
from rankwise._process.place import Place, find_place
from rankwise.errors import ConfigError, WorldError
from rankwise.world import adopt
from rankwise.world.collectives.channel import KeyChannel
from rankwise.world.jax_state import devices_started, import_jax, jax_client, jax_numbers
from rankwise.world.keys import check_seed
from rankwise.world.rendezvous.addresses import listening_address, warn_of_public, warn_once
from rankwise.world.rendezvous.protocol import SECRET_VARIABLE, Layout, await_key, own_rank_info, rendezvous
from rankwise.world.rendezvous.small_store import lost_store_as_error, open_small_store
from rankwise.world.value import World, make_world

_STARTED = (
    "JAX looked for its devices before World.init_jax() and can no longer learn of other ranks: call World.init_jax() "
    "before anything that computes or asks for devices (jax.devices(), jnp.ones(...), jax.random.key(...), also at the "
    "top of modules that are imported earlier)"
)
_INTERRUPTED = 130
_watched: int | None = None  # pid of the watched process; a forked child is not watched
_exitcode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxOptions:
    """The arguments of `World.init_jax`, validated."""

    seed: int = 1889
    timeout: timedelta = timedelta(seconds=600)
    local_device_ids: Sequence[int] | None = None
    preemption_service: bool = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.timeout < timedelta(seconds=1):
            raise ConfigError(f"timeout must be at least one second, in seconds or as a timedelta, got {self.timeout}")


def start_jax(options: JaxOptions) -> World:
    """See `World.init_jax`."""
    adopt.refuse_import_by_worker("World.init_jax()")
    jax = import_jax()
    place = find_place(os.environ)
    if place.note:
        warn_once(place.note)
    world = adopt.group_world() or adopt.bound_world()
    if jax_client() is not None:
        return _started_world(place, world)
    if world is not None and world.backend == "jax":  # a single rank, where JAX's distributed system was not started
        return world
    if world is not None:
        return _start_beside_torch(jax, world, place, options)
    alone = Layout(sharers=place.local_world_size or 1)
    layout = alone if place.world_size == 1 else _join(jax, place, options)
    return _make_world(jax, place, layout, options)


def _started_world(place: Place, world: World | None) -> World:
    """Return the world of a JAX initialised before, by rankwise or the user; check its process id and count."""
    found = jax_numbers()
    wanted = (place.rank, place.world_size) if world is None else (world.rank, world.world_size)
    if found != wanted and not (world is None and place.family == "none"):
        raise ConfigError(
            f"JAX is already initialised as process {found[0]} of {found[1]}, but this process is rank {wanted[0]} of "
            f"{wanted[1]}: leave jax.distributed.initialize() out and let World.init_jax() call it, or give it these "
            "numbers"
        )
    return adopt.current_world() if world is None else world


def _start_beside_torch(jax: Any, world: World, place: Place, options: JaxOptions) -> World:
    """Initialise JAX beside an existing torch group, over which the ranks agree on the address."""
    world.raise_together(ConfigError(_STARTED) if world.world_size > 1 and devices_started() else None)
    if world.world_size == 1:
        return world
    held: list[Coordinator] = []

    def choose() -> str:
        held.append(choose_coordinator(place))
        return held[0].address

    address = world.from_main(choose)
    here = Place(
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        local_world_size=world.local_world_size,
    )
    _initialize(jax, here, address, held[0] if held else None, options)
    return world


def _join(jax: Any, place: Place, options: JaxOptions) -> Layout:
    """Meet the other ranks, get the address of JAX's coordinator from rank 0, and start JAX with it."""
    store = _open_store(place, options.timeout)
    try:
        with lost_store_as_error(place):
            own_error = ConfigError(_STARTED) if devices_started() else None
            info = own_rank_info(place, own_error=own_error, seed=str(options.seed))
            secret = os.environ.get(SECRET_VARIABLE, "")
            layout = rendezvous(store, info, timeout=options.timeout, secret=secret, own_error=own_error)
            key, own = f"{layout.prefix}/jax", None
            if place.rank == 0:
                own = choose_coordinator(place)
                store.set(key, own.address)
            address = await_key(store, key, options.timeout)
            local_ranks = place.local_world_size or layout.local_size
            _initialize(jax, replace(place, local_world_size=local_ranks), address, own, options)
    finally:
        if not place.agent_store:
            store.close()
    return layout


def _open_store(place: Place, timeout: timedelta) -> Any:
    """Return the ranks' store; if torchrun's agent serves one at this address, only torch's client can use it."""
    if not place.agent_store:
        return open_small_store(place, timeout)
    from rankwise.world.group import open_store

    return open_store(place, timeout)


def _initialize(jax: Any, place: Place, address: str, own: Coordinator | None, options: JaxOptions) -> None:
    """Start JAX's distributed system and its devices; every rank calls it.

    Raises:
        WorldError: JAX did not start, or has another number of processes.
    """
    _configure(jax, options)
    exit_without_barrier_on_failure()
    with contextlib.ExitStack() as after:
        if own is not None:
            after.callback(own.held.close)
        try:
            jax.distributed.initialize(
                address,
                num_processes=place.world_size,
                process_id=place.rank,
                local_device_ids=local_devices(place, options.local_device_ids),
                cluster_detection_method="deactivate",
                initialization_timeout=int(options.timeout.total_seconds()),
                coordinator_bind_address=None if own is None else own.bind_address,
                **_shutdown_timeout(jax, options),
            )
            found = jax.process_count()  # initialises the devices, which needs all ranks
        except (RuntimeError, ValueError) as error:
            raise WorldError(
                f"rank {place.rank} of {place.world_size} could not start JAX with the coordinator at {address}: "
                f"{error}"
            ) from error
    if found != place.world_size:
        raise WorldError(
            f"JAX sees {found} processes, but the launcher started {place.world_size}: the backend "
            f"{jax.default_backend()!r} does not support several processes; choose another with JAX_PLATFORMS"
        )


def _configure(jax: Any, options: JaxOptions) -> None:
    if getattr(jax.config, "jax_cpu_collectives_implementation", None) in (None, "none"):
        warn_once(
            "JAX computes over several processes of CPUs with gloo only: jax_cpu_collectives_implementation is set"
        )
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # keep JAX from handling SIGTERM unless requested: else a launcher that ends the ranks has to kill them
    with contextlib.suppress(AttributeError):  # older versions lack this option
        jax.config.update("jax_enable_preemption_service", options.preemption_service)


def _shutdown_timeout(jax: Any, options: JaxOptions) -> dict[str, int]:
    """Return the option for how long an ended rank waits for the others; {} in older versions, which lack it."""
    known = inspect.signature(jax.distributed.initialize).parameters
    name = "shutdown_timeout_seconds"
    return {name: int(options.timeout.total_seconds())} if name in known else {}


def local_devices(place: Place, wanted: Sequence[int] | None) -> list[int] | None:
    """Return the indices of a rank's accelerators: one if its machine has several ranks; None = all."""
    if wanted is not None:
        return list(wanted)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    narrowed = visible != "" and "," not in visible  # the launcher has limited it to this rank's own device
    return None if place.local_world_size == 1 or narrowed else [place.local_rank]


def _make_world(jax: Any, place: Place, layout: Layout, options: JaxOptions) -> World:
    import numpy as np

    random.seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002  (libraries draw from the global generator)
    client = jax_client()
    channel = None if client is None else KeyChannel(client, "rankwise", place.rank, place.world_size, options.timeout)
    threads = choose_threads(None, environ=os.environ, cores=usable_cores(len(cpu_mask())), sharers=layout.sharers)
    world = make_world(
        place,
        layout,
        channel,
        device=jax.local_devices()[0],
        backend="jax",
        seed=options.seed,
        threads=threads,
    )
    adopt.set_bound_world(world)
    return world


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """An address for JAX's coordinator, held by rank 0.

    Attributes:
        address: "host:port" for all ranks.
        held: socket that reserves the port; JAX's server can still listen on it.
    """

    address: str
    held: socket.socket

    @property
    def bind_address(self) -> str:
        """The address on which the server listens: that of `address`; all of this machine's if `address` has a name."""
        host, _, port = self.address.rpartition(":")
        own = listening_address(host.strip("[]"))
        return f"[{own}]:{port}" if ":" in own else f"{own or '[::]'}:{port}"


def choose_coordinator(place: Place) -> Coordinator:
    """Return an address on this machine; only rank 0 calls this.

    The host is MASTER_ADDR. If that is another machine (for example an agent's), it is the source address of this
    machine towards that one.
    """
    host = _own_host(place.master_addr) if place.master_addr else socket.gethostname()
    held = _reserve_port(listening_address(host))
    warn_of_public(host, "JAX's coordinator")
    name = f"[{host}]" if ":" in host else host
    return Coordinator(address=f"{name}:{held.getsockname()[1]}", held=held)


def _own_host(known: str) -> str:
    for address in resolve(known)[:1]:
        return known if is_own(address) else address_towards(address) or socket.gethostname()
    return socket.gethostname()


def _reserve_port(host: str) -> socket.socket:
    """Bind a free port. With SO_REUSEPORT, which JAX's server sets too, that server can listen on the held port."""
    everywhere = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if everywhere else family_of(host)
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if everywhere:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    held.bind((host, 0))
    return held


def exit_without_barrier_on_failure() -> None:
    """Make this process exit without JAX's barrier if it fails; a second call does nothing."""
    global _watched  # noqa: PLW0603  (there is one process)
    if _watched == os.getpid():
        return
    _watched = os.getpid()
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not hasattr(sys, "ps1"):  # at a prompt an exception does not end the process
            note_failure(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1)
        before(kind, error, trace)

    sys.excepthook = hook
    # exit handlers run in reverse order, so this one runs before JAX's, which was registered at the import of JAX
    atexit.register(_exit_without_barrier)


def note_failure(exitcode: int) -> None:
    """Record that this process ends because of an error.

    Args:
        exitcode: the exit code to use.
    """
    global _exitcode  # noqa: PLW0603
    _exitcode = exitcode


def _exit_without_barrier() -> None:
    if _exitcode is None or _watched != os.getpid():
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the stream is closed or missing: exit anyway
            stream.flush()
    os._exit(_exitcode)
