"""`bind`: find the rank's place, choose its device, join the process group, and leave it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any

from rankwise._process.cores import choose_threads, cpu_mask, usable_cores
from rankwise._process.place import Place, find_place, given_place
from rankwise.errors import ConfigError, Interrupted, WorldError, needs_extra
from rankwise.world import adopt, group
from rankwise.world.collectives.channel import never_free_groups
from rankwise.world.devices import choose_device, default_backend, ranks_per_gpu, visible_devices
from rankwise.world.keys import check_seed, seed_generators
from rankwise.world.rendezvous.addresses import warn_once
from rankwise.world.rendezvous.protocol import (
    SECRET_VARIABLE,
    Layout,
    RankInfo,
    check_ranks,
    own_rank_info,
    rank_layouts,
    rendezvous,
)
from rankwise.world.value import World, make_world


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The arguments of `bind`, validated."""

    device: str
    backend: str | None
    seed: int
    timeout: timedelta
    threads: int | None
    allow_shared_device: bool
    always_group: bool
    rank: int | None
    world_size: int | None
    local_rank: int | None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.timeout <= timedelta(0):
            raise ConfigError(f"timeout must be positive, in seconds or as a timedelta, got {self.timeout}")
        if (self.rank is None) != (self.world_size is None) or (self.rank is None and self.local_rank is not None):
            raise ConfigError(
                f"rank= and world_size= must be given together, and local_rank= only with them; got rank={self.rank}, "
                f"world_size={self.world_size}, local_rank={self.local_rank}"
            )

    def place(self) -> Place:
        """Return this process's place: from the arguments, else from the launcher's variables.

        Raises:
            ConfigError: the numbers are contradictory.
            WorldError: the variables are, or a multiprocessing child would silently become a world of one rank.
        """
        if self.rank is not None and self.world_size is not None:
            return given_place(os.environ, rank=self.rank, world_size=self.world_size, local_rank=self.local_rank)
        place = find_place(os.environ)
        if place.family == "none" and os.environ.get("MASTER_ADDR") and multiprocessing.parent_process() is not None:
            raise WorldError(
                f"this process was started by multiprocessing, MASTER_ADDR={os.environ['MASTER_ADDR']} is set but its "
                "rank is not, so every such process would be a world of one rank: pass bind(rank=rank, "
                "world_size=world_size), where rank is for example mp.spawn's first argument; for a world of one rank "
                "use bind(rank=0, world_size=1)"
            )
        return place


def bind(
    *,
    device: str = "auto",
    backend: str | None = None,
    seed: int = 1889,
    timeout: timedelta | float = 600.0,
    threads: int | None = None,
    allow_shared_device: bool = False,
    always_group: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> contextlib.AbstractContextManager[World]:
    """Bind this process to its place, device and process group during a ``with`` block.

    Every rank calls it. A single rank needs no process group. The place is read from the variables of rankwise,
    torchrun, Open MPI or Slurm, see `find_place`. `random`, NumPy and torch get the same seed on all ranks, so models
    start equal. For randomness that differs per rank, use ``world.generator("what", world.rank)``.
    At the end of the block the group is destroyed. If an exception leaves the block, the group is aborted without
    waiting, so that the other ranks fail within seconds too. In a child forked inside the block, the end of the block
    does nothing. A process may bind again after the block. In a Ray Train worker, `bind` uses Ray's process group with
    its backend and timeout, and does not destroy it.

    Args:
        device: "auto" (CUDA by local rank, else MPS for a single rank, else CPU), "cpu", "cuda", "cuda:<index>" or
            "mps".
        backend: torch's name of the backend; None = gloo, on CUDA "cpu:gloo,cuda:nccl".
        seed: 0 <= seed < 2**32, the same on all ranks; data orders use it too.
        timeout: seconds that ranks wait for each other, when joining and in each collective.
        threads: CPU threads of torch in this rank; None = OMP_NUM_THREADS, else this rank's share of the usable cores.
        allow_shared_device: let several ranks compute on one GPU (NCCL refuses that; use ``backend="gloo"``); the
            option ``rankwise run --ranks-per-gpu`` sets both.
        always_group: initialise a group for a single rank too.
        rank: this process's rank, if no launcher's variables set it, as in a function of ``mp.spawn``.
        world_size: number of ranks, together with `rank`. They meet at MASTER_ADDR (unset: this machine), MASTER_PORT.
        local_rank: rank on this machine; None = `rank`, if MASTER_ADDR says that all ranks are on this machine.

    Returns:
        A context manager, which gives the world.

    Raises:
        ConfigError: an argument is out of range.
        WorldError: on entry: the place is contradictory, the device does not exist, a rank is missing, ranks have
            different seeds or versions of torch or rankwise, or a world is already bound.
    """
    return _Bind(
        device=device,
        backend=backend,
        seed=seed,
        timeout=timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout),
        threads=threads,
        allow_shared_device=allow_shared_device,
        always_group=always_group,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
    )


class _Bind(contextlib.AbstractContextManager[World], contextlib.ContextDecorator):
    """What `bind` returns: a context manager that tells whoever forgot the `with`."""

    def __init__(self, **options: Any) -> None:
        self._options = _Options(**options)

    def __enter__(self) -> World:
        bound = _bound(self._options)
        world = bound.__enter__()
        self._bound = bound
        return world

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._bound.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"bind() is a context manager, not a world: write `with bind() as world:` and use world.{name} in the block"
        )


@contextlib.contextmanager
def _bound(options: _Options) -> Iterator[World]:
    adopt.refuse_import_by_worker("bind()")
    adopt.refuse_second_bind()
    place, process, ray_world = options.place(), os.getpid(), adopt.group_world()
    if place.note:
        warn_once(place.note)
    world = _join(place, options) if ray_world is None else _bind_ray_world(ray_world, options)
    adopt.set_bound_world(world)
    try:
        yield world
    except BaseException as error:
        graceful = isinstance(error, SystemExit) and error.code in (None, 0, Interrupted.EXIT_CODE)
        _leave(world, process, graceful=graceful, ours=ray_world is None)
        raise
    _leave(world, process, graceful=True, ours=ray_world is None)


def _leave(world: World, process: int, *, graceful: bool, ours: bool) -> None:
    if os.getpid() != process:  # a forked child: the group belongs to its parent
        never_free_groups()
        return
    adopt.set_bound_world(None)
    if world.channel is not None and ours:
        group.leave(graceful=graceful and not world.channel.broken)


def _join(place: Place, options: _Options) -> World:
    device, own_error = _take_device(place, options)
    if place.world_size == 1:
        if own_error is not None:
            raise own_error
        layout = Layout(sharers=place.local_world_size or 1)
        store = group.local_store() if options.always_group else None
    else:
        base_store = process_store(place, options.timeout)
        layout = rendezvous(
            base_store,
            _rank_info(place, options, device, own_error),
            timeout=options.timeout,
            allow_shared_device=options.allow_shared_device or ranks_per_gpu(os.environ) > 1,
            secret=os.environ.get(SECRET_VARIABLE, ""),
            own_error=own_error,
        )
        store = group.prefixed(base_store, layout.prefix)
    backend = options.backend or default_backend(device, sharers=ranks_per_gpu(os.environ))
    channel = None if store is None else group.open_group(store, place, backend, device, options.timeout)
    return _make_world(place, layout, channel, options, device=device, backend="none" if channel is None else backend)


def _bind_ray_world(ray_world: World, options: _Options) -> World:
    """Return a world on Ray's group; the ranks exchange their rank infos over this group instead of a store."""
    place = Place(
        family="ray",
        rank=ray_world.rank,
        world_size=ray_world.world_size,
        local_rank=ray_world.local_rank,
        local_world_size=ray_world.local_world_size,
        node_rank=None,
        num_nodes=None,
    )
    options = replace(options, device=adopt.ray_device()) if options.device == "auto" else options
    device, own_error = _take_device(place, options)
    infos = ray_world.all_gather_object(_rank_info(place, options, device, own_error))
    error = check_ranks(infos, world_size=place.world_size, allow_shared_device=options.allow_shared_device)
    if error:
        raise own_error or WorldError(error)
    return _make_world(
        place, rank_layouts(infos)[place.rank], ray_world.channel, options, device=device, backend=ray_world.backend
    )


def _make_world(place: Place, layout: Layout, channel: Any, options: _Options, *, device: str, backend: str) -> World:
    """Return the world, after this process's threads and generators are set."""
    import torch

    cores = usable_cores(len(cpu_mask()))
    threads = choose_threads(options.threads, environ=os.environ, cores=cores, sharers=layout.sharers)
    torch.set_num_threads(threads)
    seed_generators(options.seed)
    return make_world(
        place, layout, channel, device=torch.device(device), backend=backend, seed=options.seed, threads=threads
    )


_stores: dict[tuple[Any, ...], Any] = {}


def _key(place: Place) -> tuple[Any, ...]:
    return os.getpid(), place.master_addr, place.master_port, place.rank, place.agent_store


def has_process_store(place: Place) -> bool:
    """Whether `bind` has opened torch's store of this place in this process; if so, it has on every rank."""
    return _key(place) in _stores


def process_store(place: Place, timeout: timedelta) -> Any:
    """Return the ranks' store, opened once per process and kept until the process ends.

    A rank that binds again may be earlier than rank 0, so rank 0's store must still exist: a store that ended with the
    first group could accept a connection and then disappear. Each rendezvous uses its own keys.
    """
    key = _key(place)
    store = _stores.get(key)
    if store is not None:
        try:
            store.set_timeout(timeout)
            store.num_keys()
        except Exception:  # noqa: BLE001  (each torch has its own) rank 0 was started anew, with another store
            del _stores[key], store
            store = None
    if store is None:
        store = _stores[key] = group.open_store(place, timeout)
    return store


def _take_device(place: Place, options: _Options) -> tuple[str, Exception | None]:
    """Choose the device and make it current; return a failure instead of raising, to report it to the other ranks."""
    with needs_extra("rankwise.bind needs torch: pip install 'rankwise[train]', or torch's build for your accelerator"):
        import torch

    try:
        visible = visible_devices()
        name = choose_device(
            options.device,
            local_rank=place.local_rank,
            world_size=place.world_size,
            visible=visible,
            sharers=ranks_per_gpu(os.environ),
        )
        choose_threads(options.threads, environ=os.environ, cores=1, sharers=1)
        if name.startswith("cuda"):
            torch.cuda.set_device(name)
    except Exception as error:  # noqa: BLE001  (told to all ranks, then raised)
        return "cpu", error
    return name, None


def _rank_info(place: Place, options: _Options, device: str, own_error: Exception | None) -> RankInfo:
    import torch

    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.startswith("cuda") else ""
    version = torch.__version__.partition("+")[0]
    return own_rank_info(place, gpu=gpu, own_error=own_error, seed=str(options.seed), torch=version)
