"""Ranks and shares without a process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rankwise.data.contract import BaseSource, IntArray, Order, OrderState, Share
from rankwise.data.contract.cuts import lone_share
from rankwise.data.samples import SampleLoader
from rankwise.world import World


@dataclass(frozen=True)
class RankPlace:
    """The part of a world that a loader needs: one rank of a machine, without the other ranks.

    Attributes:
        rank: the rank.
        world_size: number of ranks.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def device(self) -> Any:
        """The CPU, as torch's."""
        import torch

        return torch.device("cpu")

    @property
    def local_world_size(self) -> int:
        """Ranks of this machine."""
        return self.world_size


def loader_of(
    source: BaseSource,
    order: Order,
    *,
    rank: int = 0,
    world_size: int = 1,
    device: Any = None,
    depth: int = 2,
    **options: Any,
) -> SampleLoader:
    """Return the loader of one rank, without a process group.

    Args:
        source: the samples, of any kind.
        order: which samples form which step.
        rank: the rank.
        world_size: number of ranks.
        device: device of the tensors; None gives NumPy arrays.
        depth: maximum number of prefetched steps.
        **options: options of `SampleLoader`.
    """
    place = cast("World", RankPlace(rank, world_size))
    return SampleLoader(source, order=order, world=place, device=device, depth=depth, **options)


def share_of(ids: Sequence[int] | IntArray) -> Share:
    """Return a share with all samples of a step on one rank.

    Args:
        ids: int64[B], sample ids.
    """
    held: IntArray = np.asarray(ids, dtype=np.int64)
    return lone_share(held, OrderState(seed=1, epoch=0, position=len(held), recipe="test"))
