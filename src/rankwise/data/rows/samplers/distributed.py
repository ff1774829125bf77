"""`DistributedSampler`: divides a sampler's rows among ranks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

import numpy as np

from rankwise.data.contract import JSON
from rankwise.data.rows.abc import PassDraws, Sampler, fresh_seed, lone_copy, mask_bounds
from rankwise.data.rows.samplers.chunks import RandomSampler, SequentialSampler
from rankwise.data.rows.samplers.classes import ClassSampler, WeightedClassSampler
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError, WorldError, needs_extra

DistInfo: TypeAlias = Literal["torch", "jax"] | Callable[[], tuple[int, int]]


def find_rank(dist_info: DistInfo) -> tuple[int, int]:
    """Return (rank, number of ranks).

    Raises:
        ConfigError: `dist_info` is anything else, or it gives an invalid rank.
        WorldError: the framework is not initialized.
        MissingExtraError: the framework is not installed.
    """
    known = {"torch": _torch, "jax": _jax}
    if not callable(dist_info) and dist_info not in known:
        raise ConfigError(
            f"dist_info must be 'torch', 'jax', or a function that returns (rank, ranks); got {dist_info!r}"
        )
    found = dist_info() if callable(dist_info) else known[dist_info]()
    rank, world_size = (int(value) for value in found)
    if not 0 <= rank < world_size:
        raise ConfigError(f"dist_info needs (rank, ranks) with 0 <= rank < ranks; got ({rank}, {world_size})")
    return rank, world_size


def _torch() -> tuple[int, int]:
    with needs_extra("dist_info='torch' needs torch: pip install 'rankwise[train]'"):
        import torch.distributed as dist
    if not (dist.is_available() and dist.is_initialized()):
        raise WorldError(
            "torch.distributed is not initialized: enter rankwise.bind(), or call "
            "torch.distributed.init_process_group(), before making a DistributedSampler with dist_info='torch'"
        )
    return dist.get_rank(), dist.get_world_size()


def _jax() -> tuple[int, int]:
    with needs_extra("dist_info='jax' needs jax: pip install 'rankwise[jax]'"):
        import jax
    from rankwise.world.adopt import bound_world

    bound = bound_world()
    if not jax.distributed.is_initialized() and (bound is None or bound.backend != "jax"):
        raise WorldError(
            "JAX distributed is not initialized: call rankwise.World.init_jax() or jax.distributed.initialize() before "
            "making a DistributedSampler with dist_info='jax'"
        )
    return jax.process_index(), jax.process_count()


class DistributedSampler(Sampler):
    """Gives each rank a contiguous part of the rows in another sampler's mask; parts are disjoint and cover the mask.

    With equal batches, a rank uses as many rows of its part as fill whole batches on every rank. The few remaining rows
    are at the end of its part in one epoch and at the beginning in the next: two epochs cover every row.

    Args:
        sampler: draws the rows. It is copied; the ranks share its mask (for example a training split).
        dist_info: "torch" or "jax", which must be initialized, or a function that returns (rank, ranks).
        enforce_equal_batches: the same number of batches on every rank, all full. False = all rows in every epoch;
            sizes of parts, and numbers of batches, then differ by at most one.

    Attributes:
        rank: this rank.
        world_size: number of ranks.

    Raises:
        ConfigError: `dist_info` is anything else. In a pass: a rank would have no row, no full batch,
            or no class that can be drawn.
        WorldError: the framework is not initialized.
    """

    handles_workers = True

    def __init__(self, sampler: Sampler, *, dist_info: DistInfo, enforce_equal_batches: bool = True) -> None:
        self.rank, self.world_size = find_rank(dist_info)
        self._equal = enforce_equal_batches
        self._sampler = lone_copy(sampler)
        self._mask, self._epoch = self._sampler.mask, self._sampler.epoch
        self._is_seeded = self._sampler.is_seeded
        self._derive()

    @property
    def rng(self) -> np.random.Generator | None:
        """The generator of the copied sampler; each rank derives its own from an assigned one."""
        return self._sampler.rng

    @rng.setter
    def rng(self, value: np.random.Generator | int | None) -> None:
        self._sampler.rng = value  # converts seeds to generators
        self._is_seeded = value is not None
        self._derive()
        self._restart()

    @property
    def has_equal_batches(self) -> bool:
        """Whether all ranks have batches of equal lengths; False for samplers of users, where it is unknown."""
        ours = isinstance(self._sampler, RandomSampler | SequentialSampler | ClassSampler)
        return self._equal and ours and known_settings(self._sampler) is not None

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch of one rank."""
        return self._sampler.batch_size

    @property
    def shuffle(self) -> bool | None:
        """Whether the copied sampler shuffles."""
        return self._sampler.shuffle

    def n_batches(self, n_obs: int) -> int:
        """Return the number of batches that this rank yields in a pass over a loader of `n_obs` rows."""
        probe = copy.copy(self._sampler)
        probe.restrict(self._part(n_obs, is_odd=False))
        return probe.n_batches(n_obs)

    def validate(self, n_obs: int) -> None:
        """Refuse more ranks than rows or full batches, and parts without a class that can be drawn.

        Every rank raises an error that concerns any of them, so that no rank continues and waits for the others. The
        copied sampler validates its part.
        """
        self._part(n_obs, is_odd=False)
        if isinstance(self._sampler, RandomSampler):
            parts = [self._part(n_obs, is_odd=False, rank=rank) for rank in range(self.world_size)]
            probe = copy.copy(self._sampler)
            probe.restrict(min(parts, key=lambda part: part.stop - part.start))
            probe.validate(n_obs)
        if isinstance(self._sampler, ClassSampler):
            self._sampler.validate(n_obs)
            for rank, is_odd in itertools.product(range(self.world_size), (False, True)):
                part = self._part(n_obs, is_odd=is_odd, rank=rank)
                if not self._sampler.can_draw(part):
                    raise ConfigError(
                        f"rank {rank} of {self.world_size} has the rows {part.start} to {part.stop - 1}, of which no "
                        "class has a positive weight: spread classes over all parts of the data (write the collection "
                        "with groupby=, in more datasets than ranks), use fewer ranks, or other weights"
                    )

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return the settings that decide the batches of a rank, None if those of the copied sampler are unknown."""
        of_copy = known_settings(self._sampler)
        if of_copy is None:
            return None
        mask: list[JSON] = [self._mask.start or 0, self._mask.stop]  # the copy's is this rank's part, which changes
        return {**of_copy, "mask": mask, "ranks": self.world_size, "enforce_equal_batches": self._equal}

    def pass_seed(self) -> int | None:
        """Return the seed from which the ranks derive theirs; None without a generator."""
        return self._shared_seed

    def seek(self, epoch: int, *, seed: int | None, salt: int | None = None) -> None:
        """Make the next pass repeat one that another process of this rank began; see `Sampler.seek`."""
        super().seek(epoch, seed=None, salt=salt)
        if seed is not None:
            self._take_seed(seed)

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        self._sampler.restrict(self._part(n_obs, is_odd=self._draws.is_odd))
        self._sampler.follow(self._draws)
        return self._sampler.sample(n_obs)

    def _begin_pass(self) -> PassDraws:
        """Only count the pass: the copied sampler draws random numbers."""
        draws = self._next_draws(seed=0)
        self._epoch += 1
        return draws

    def _derive(self) -> None:
        """Derive the generator of this rank from the shared one."""
        self._shared_seed: int | None = None
        if self._sampler.rng is not None:
            self._take_seed(fresh_seed(copy.deepcopy(self._sampler.rng)))

    def _take_seed(self, seed: int) -> None:
        self._shared_seed = seed
        self._sampler.rng = np.random.default_rng([self.rank, seed])

    def _part(self, n_obs: int, *, is_odd: bool, rank: int | None = None) -> slice:
        rank = self.rank if rank is None else rank
        start, stop = mask_bounds(self._mask, n_obs)
        size = stop - start
        if size < self.world_size and not self._equal:  # the same on every rank
            raise ConfigError(
                f"{self.world_size} ranks share {size} rows, so some have none: use fewer ranks, or a larger mask"
            )
        first = start + size * rank // self.world_size
        end = start + size * (rank + 1) // self.world_size
        if self._equal:
            batch_size = self._sampler.batch_size
            if batch_size is None:
                raise ConfigError("equal batches need the sampler's batch_size, or enforce_equal_batches=False")
            rows = size // self.world_size // batch_size * batch_size
            if rows == 0:
                raise ConfigError(
                    f"{self.world_size} ranks share {size} rows, {size // self.world_size} for each, which is less "
                    f"than batch_size ({batch_size}): no rank would have a batch. Use a smaller batch_size, fewer "
                    "ranks, a larger mask, or enforce_equal_batches=False"
                )
            left = end - first - rows
            first, end = (first + left, end) if is_odd else (first, end - left)
        return slice(first, end)


def known_settings(sampler: Sampler) -> Mapping[str, JSON] | None:
    """Return the settings of a sampler, None if they are unknown.

    A subclass that inherits them but draws in its own way may have further settings, which would be missing.
    """
    classes = type(sampler).__mro__
    telling, drawing = (
        next(place for place, one in enumerate(classes) if name in vars(one)) for name in ("pass_settings", "_sample")
    )
    return sampler.pass_settings() if telling <= drawing else None


# exact types: a subclass may draw in another way
_KEYED = (RandomSampler, SequentialSampler, ClassSampler, WeightedClassSampler)


def foreseen(sampler: Sampler) -> Sampler | None:
    """Return a copy that draws the next pass of `sampler`, provided that nothing changes until then.

    A pass of our samplers is a function of the seed and the epoch. If the seed is still to be drawn, the copy draws it
    from a copy of the generator: the result is wrong if other code draws from the generator before the pass.
    None for all other samplers: they may use any source of random numbers.
    """
    kind = type(sampler)
    if kind in _KEYED:
        made = lone_copy(sampler, copied=copy.copy)
        if not sampler.knows_seed:
            made.__dict__["_rng"] = copy.deepcopy(sampler.rng)  # not by assignment, which starts again at epoch 0
        return made
    if kind is not DistributedSampler:
        return None
    inner = foreseen(sampler.__dict__["_sampler"])
    if inner is None or isinstance(inner, ClassSampler):  # it sorts its part again in each pass
        return None
    outer = lone_copy(sampler, copied=copy.copy)
    outer.__dict__["_sampler"] = inner
    return outer
