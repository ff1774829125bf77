"""`World`: who this process is among the ranks, and how it talks to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rankwise.world import control, gathers, keys, objects, reductions

if TYPE_CHECKING:
    import numpy as np
    import torch

    from rankwise.world.channel import Channel

__all__ = ["ReduceOp", "World"]

ReduceOp = Literal["sum", "mean", "min", "max"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among the ranks; made by `bind`, `World.current` or `World.single`.

    A *tree* is a dict, list or tuple (nested at will) of numbers, torch tensors and NumPy arrays, or one such value.
    The collectives take and return trees. Every rank of the world must call them, in the same order; on one rank they
    need no process group and return a copy. Results never share memory with the arguments and carry no gradient (but
    see `all_gather`).

    Attributes:
        rank: rank in this world, 0 <= rank < world_size.
        world_size: number of ranks.
        local_rank: rank among those of this machine.
        local_world_size: ranks on this machine.
        node_rank: which machine this is, 0 <= node_rank < num_nodes.
        num_nodes: number of machines.
        device: where this rank computes.
        backend: how the group talks ("gloo", "cpu:gloo,cuda:nccl", ...); "none" without a group.
        seed: what the generators start from, equal on all ranks.
        threads: CPU threads that torch uses in this rank.
        global_ranks: global rank of each rank of this world; only a subgroup's differ from ``range(world_size)``.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    device: torch.device
    backend: str
    seed: int
    threads: int
    global_ranks: tuple[int, ...]
    channel: Channel | None = field(default=None, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that writes and speaks."""
        return self.rank == 0

    @classmethod
    def single(cls, *, device: torch.device | str = "cpu", seed: int = 1889) -> World:
        """Return a world of one rank, without a process group.

        Args:
            device: where it computes.
            seed: what its generators start from.
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
        """Return the world that this process is in: cheap, not a collective.

        The process group that is initialised (by `bind`, Lightning, Accelerate or the user), else the one-rank world
        that `bind` made, else `World.single()`.
        """
        from rankwise.world.adopt import current_world

        return current_world()

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

    def barrier(self) -> None:
        """Wait until every rank of the world is here."""
        control.barrier(self)

    def broadcast(self, tree: Any, src: int = 0) -> Any:
        """Return rank `src`'s tree on every rank; the trees of all ranks have one structure, shapes and dtypes."""
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

    def reduce(self, tree: Any, op: ReduceOp = "sum", dst: int = 0) -> Any:
        """Return what `all_reduce` returns, on rank `dst` only; None elsewhere."""
        return reductions.reduce(self, tree, op, dst)

    def all_reduce(self, tree: Any, op: ReduceOp = "sum") -> Any:
        """Return the sum (mean, min, max) over ranks, leaf by leaf; the same bits on all ranks."""
        return reductions.all_reduce(self, tree, op)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Return rank `src`'s object on every rank; it is pickled."""
        return objects.broadcast_object(self, obj, src)

    def from_main(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make()` returns on the main rank: it is called there only, and pickled.

        For what every rank needs and one should read: ``world.from_main(lambda: Catalogue.load("screen.idx"))``. Every
        rank calls it, and waits for the main rank no longer than for any collective (the timeout of the group).

        Raises:
            Exception: on the main rank, whatever `make` raised.
            DesyncError: on the others, `make` failed; holds its message.
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
            DesyncError: another rank failed; names it and its message.
        """
        control.raise_together(self, error)

    def subgroup(self, ranks: Sequence[int]) -> World | None:
        """Return the world of some of the ranks (renumbered in ascending order) to its members, None to the others.

        Every rank of this world must call it, with the same ranks.
        """
        return control.subgroup(self, ranks)
