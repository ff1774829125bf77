"""`World`: this process's place among the ranks, and its collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from rankwise.world import keys
from rankwise.world.collectives import control, gathers, objects, reductions

if TYPE_CHECKING:
    import numpy as np
    import torch
    import torch.distributed as dist

    from rankwise._process.place import Place
    from rankwise.world.collectives.channel import Channel, KeyChannel
    from rankwise.world.rendezvous.protocol import Layout

ReduceOp: TypeAlias = Literal["sum", "mean", "avg", "min", "max"]
T = TypeVar("T")


def _op_name(op: Any) -> str:
    """Return rankwise's name for torch's ``ReduceOp.SUM`` and other usual names; the call checks it."""
    name = str(getattr(getattr(op, "op", op), "name", op)).lower()
    return {"avg": "mean", "average": "mean"}.get(name, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among the ranks; created by `bind`, `World.init_jax`, `World.current` or `World.single`.

    A *tree* is a dict, list or tuple, possibly nested, of numbers, torch tensors and NumPy arrays, or one such value.
    The collectives take and return trees. Every rank of the world must call them, in the same order. On one rank they
    need no process group and return a copy. Results never share memory with the arguments and have no gradient (but
    see `all_gather`).

    Attributes:
        rank: rank in this world, 0 <= rank < world_size.
        world_size: number of ranks.
        local_rank: rank among those of this machine.
        local_world_size: ranks on this machine.
        node_rank: number of this machine, 0 <= node_rank < num_nodes.
        num_nodes: number of machines.
        device: this rank's device: a ``torch.device``, or in a JAX program the first of this rank's devices.
        backend: backend of the group ("gloo", "cpu:gloo,cuda:nccl", ...); "none" without a group, "jax" with JAX alone.
        seed: seed of the generators, equal on all ranks.
        threads: CPU threads of torch in this rank (with JAX: its share of the cores; XLA chooses its own number).
        global_ranks: global rank of each rank of this world; only a subgroup's differ from ``range(world_size)``.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    device: Any
    backend: str
    seed: int
    threads: int
    global_ranks: tuple[int, ...]
    channel: Channel | KeyChannel | None = field(default=None, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @classmethod
    def single(cls, *, device: torch.device | str = "cpu", seed: int = 1889) -> World:
        """Return a world of one rank, without a process group.

        Args:
            device: its device.
            seed: seed of its generators.
        """
        import torch

        return cls(
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            num_nodes=1,
            device=torch.device(device),
            backend="none",
            seed=seed,
            threads=torch.get_num_threads(),
            global_ranks=(0,),
        )

    @classmethod
    def current(cls) -> World:
        """Return the world of this process; cheap, not a collective.

        It is the world of the initialised process group (of `bind`, Lightning, Accelerate or the user), else the world
        that `bind` or `init_jax` created, else that of a JAX initialised by the user. Without any of these it has the
        rank and size from a launcher's variables: loaders share data by these numbers, and a collective raises
        `WorldError`, because there is no process group. Without a launcher it is `World.single()`.

        Raises:
            WorldError: the variables for rank and size contradict each other.
        """
        from rankwise.world.adopt import current_world

        return current_world()

    @classmethod
    def init_jax(
        cls,
        *,
        seed: int = 1889,
        timeout: timedelta | float = 600.0,
        local_device_ids: Sequence[int] | None = None,
        preemption_service: bool = False,
    ) -> World:
        """Make this process a rank of a JAX program and return its world; torch is not needed.

        Every rank calls it before any computation with JAX. The place is read as in `bind` (`rankwise run`, torchrun,
        Open MPI, Slurm). The ranks meet, rank 0 chooses a free port for JAX's coordinator and sends it to the others,
        and all call ``jax.distributed.initialize``. A single rank has nothing to initialise, so the same script runs as
        ``python train.py``. Inside ``with rankwise.bind()`` JAX gets the numbers of that world, which is returned. A
        second call returns the same world.

        `random` and NumPy get the same seed on all ranks. JAX shuts down at the end of the process; a rank that ends
        with an exception exits at once, so that the others fail instead of waiting for it.

        Args:
            seed: 0 <= seed < 2**32.
            timeout: seconds that ranks wait for each other: when joining, in each collective of the world, and for the
                last rank to end.
            local_device_ids: the accelerators of this rank; None = the one with the number of its local rank if the
                machine has several ranks, else all of them.
            preemption_service: let JAX handle SIGTERM for ``reached_preemption_sync_point``; the signal then does not
                end the process.

        Raises:
            MissingExtraError: JAX is not installed.
            ConfigError: an argument is out of range, JAX has already computed, or was initialised with other numbers.
            WorldError: the place is contradictory, a rank is missing, or JAX could not start.
        """
        from rankwise.world.jax_start import JaxOptions, start_jax

        return start_jax(
            JaxOptions(
                seed=seed,
                timeout=timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout),
                local_device_ids=local_device_ids,
                preemption_service=preemption_service,
            )
        )

    def generator(self, *key: int | str) -> np.random.Generator:
        """Return a NumPy generator that depends on (seed, key) only: equal on all ranks unless the key holds the rank.

        Raises:
            ConfigError: the key holds something else than integers and strings.
        """
        return keys.numpy_generator(self.seed, key)

    def torch_generator(self, *key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a torch generator that depends on (seed, key) only: equal on all ranks unless the key holds the rank.

        Raises:
            ConfigError: the key holds something else than integers and strings.
        """
        return keys.torch_generator(self.seed, key, device)

    def jax_key(self, *key: int | str) -> Any:
        """Return a JAX random key that depends on (seed, key) only: equal on all ranks unless the key holds the rank.

        Raises:
            ConfigError: the key holds something else than integers and strings.
            MissingExtraError: JAX is not installed.
        """
        return keys.jax_key(self.seed, key)

    def print(self, *values: Any, **options: Any) -> None:
        """Print on the main rank only; not a collective.

        Args:
            *values: as for `print`.
            **options: as for `print`; the output is flushed unless `flush=False`.
        """
        if self.is_main:
            print(*values, **{"flush": True, **options})  # noqa: T201

    def barrier(self) -> None:
        """Wait until every rank of the world calls it."""
        control.barrier(self)

    def broadcast(self, tree: Any, src: int = 0) -> Any:
        """Return rank `src`'s tree on every rank; all ranks' trees must have equal structure, shapes and dtypes."""
        return gathers.broadcast(self, tree, src)

    def gather(self, tree: Any, dst: int = 0) -> list[Any] | None:
        """Return the trees of all ranks, by rank, on rank `dst` and None elsewhere; first axes may differ in length."""
        return gathers.gather(self, tree, dst)

    def all_gather(self, tree: Any, *, grad: bool = False) -> list[Any]:
        """Return the trees of all ranks, by rank; first axes may differ in length.

        Args:
            tree: this rank's tree.
            grad: let gradients flow back: each rank's input receives the sum over ranks of the gradients of its part.
        """
        return gathers.all_gather(self, tree, grad=grad)

    def reduce(self, tree: Any, op: ReduceOp | dist.ReduceOp | dist.ReduceOp.RedOpType = "sum", dst: int = 0) -> Any:
        """Return what `all_reduce` returns, on rank `dst` only; None elsewhere."""
        return reductions.reduce(self, tree, _op_name(op), dst)

    def all_reduce(self, tree: Any, op: ReduceOp | dist.ReduceOp | dist.ReduceOp.RedOpType = "sum") -> Any:
        """Return the sum (mean, min, max) over ranks, leaf by leaf, bitwise equal on all ranks.

        Args:
            tree: this rank's tree.
            op: "sum", "mean" (or "avg"), "min" or "max", or torch's ``ReduceOp.SUM``, ``AVG``, ``MIN`` or ``MAX``.
        """
        return reductions.all_reduce(self, tree, _op_name(op))

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Return rank `src`'s object on every rank; it is pickled."""
        return objects.broadcast_object(self, obj, src)

    def from_main(self, make: Callable[[], T]) -> T:
        """Call `make()` on the main rank only, and return its (pickled) value on every rank.

        Use it for data that every rank needs and one rank should read: ``world.from_main(lambda:
        Catalogue.load("screen.idx"))``. Every rank calls it, and waits at most the group's timeout for the main rank.

        Raises:
            Exception: on the main rank: the error that `make` raised.
            DesyncError: on the other ranks: `make` failed; with its message.
        """
        return objects.from_main(self, make)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """Return the objects of all ranks, by rank, on rank `dst` and None elsewhere; they are pickled."""
        return objects.gather_object(self, obj, dst)

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks, by rank; they are pickled."""
        return objects.all_gather_object(self, obj)

    def raise_together(self, error: BaseException | None) -> None:
        """Raise on every rank if any rank passed an error; every rank calls it.

        Raises:
            BaseException: this rank's own error.
            DesyncError: another rank failed; with its rank and message.
        """
        control.raise_together(self, error)

    def subgroup(self, ranks: Sequence[int]) -> World | None:
        """Return the world of some ranks (renumbered in ascending order) on its members, None on other ranks.

        Every rank of this world must call it, with the same ranks.
        """
        return control.subgroup(self, ranks)


def make_world(
    place: Place,
    layout: Layout | None,
    channel: Any,
    *,
    device: Any,
    backend: str,
    threads: int,
    seed: int = 1889,
) -> World:
    """Return the world of a place, completed with the result of the meeting.

    Without a meeting, for a group that another library created, all ranks are by default on one machine.
    """
    host, num_hosts = (0, 1) if layout is None else (layout.host, layout.num_hosts)
    return World(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size or (place.world_size if layout is None else layout.local_size),
        node_rank=host if place.node_rank is None else place.node_rank,
        num_nodes=num_hosts if place.num_nodes is None else place.num_nodes,
        device=device,
        backend=backend,
        seed=seed,
        threads=threads,
        global_ranks=tuple(range(place.world_size)),
        channel=channel,
    )
