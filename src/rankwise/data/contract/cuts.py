"""From a global batch to the share of one rank, and the keys of samples: arithmetic that all packages use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankwise.data.contract.values import IntArray, ListedIds, OrderState, Share, Step, whole_number
from rankwise.errors import ConfigError

WordArray: TypeAlias = npt.NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15
_MOST_SPEED = 64  # so a step's cut moves by at least 1.6 %


def whole_speeds(speeds: Sequence[float], *, world_size: int) -> tuple[int, ...]:
    """Return the speeds of the ranks as integers, the fastest as 64. `shares` cuts by these exact values.

    Args:
        speeds: one per rank, in rank order, in any unit, for example samples/s.
        world_size: number of ranks.

    Raises:
        ConfigError: there is not one for each rank, or one is not a positive number.
    """
    values = [float(speed) for speed in speeds]
    if len(values) != world_size:
        raise ConfigError(f"speeds must have a number for each of the {world_size} ranks, got {len(values)}: {values}")
    if not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"speeds must be positive numbers, got {values}: do not start a rank without work")
    return tuple(max(1, round(_MOST_SPEED * value / max(values))) for value in values)


def num_micro_batches(
    count: int, *, world_size: int, micro_batch: int | None, speeds: Sequence[int] | None = None
) -> int:
    """Return into how many micro-batches a step of `count` samples is cut, the same on all ranks.

    The largest share has ``ceil(count / world_size)`` samples (``ceil(count * max(speeds) / sum(speeds))`` at most),
    and no micro-batch of a rank exceeds `micro_batch`.

    Args:
        count: samples of the global batch, padding included.
        world_size: number of ranks.
        micro_batch: most samples of one rank in one pass; None = the whole share in one pass.
        speeds: see `shares`.

    Raises:
        ConfigError: `micro_batch` is below 1.
    """
    if micro_batch is None:
        return 1
    micro_batch = whole_number("micro_batch, the maximum samples per rank and pass,", micro_batch, least=1)
    largest = -(-count // world_size) if speeds is None else -(-count * max(speeds) // sum(speeds))
    return max(1, -(-largest // micro_batch))


def shares(
    step: Step, *, rank: int, world_size: int, num_micro: int, speeds: Sequence[int] | None = None
) -> tuple[Share, ...]:
    """Return the micro-batches of one rank: `num_micro` shares, in the order of use.

    The global batch is sorted by lane (stable, so by position inside a lane) and cut into `world_size` runs whose
    lengths differ by at most one; the rank's run is cut into `num_micro` runs in the same way. Shares may be empty.
    Only the ids of this rank are computed, if the order supports that (see `StepIds`).

    With `speeds`, each rank gets one sample if there are enough, and the rest in proportion to the speeds. Samples and
    their order do not change, and a rank is without samples in the same steps as with equal shares.

    Args:
        step: the global batch.
        rank: the rank whose shares to return.
        world_size: number of ranks.
        num_micro: micro-batches of the step, from `num_micro_batches`.
        speeds: one integer per rank, in rank order (`whole_speeds`); None cuts equal shares.

    Raises:
        ConfigError: the rank is not in the world, `num_micro` is below 1, or there is not one speed for each rank.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"shares needs 0 <= rank < world_size, got rank {rank} of {world_size}")
    if num_micro < 1:
        raise ConfigError(f"shares needs num_micro >= 1, got {num_micro}")
    low, high = _begin(step.size, rank, world_size, speeds), _begin(step.size, rank + 1, world_size, speeds)
    offsets, ids = step.members.run(low, high)
    positions = step.start + offsets
    weights = (offsets < step.count).astype(np.float64) if step.size > step.count else None
    made = []
    for micro in range(num_micro):
        part = slice(micro * len(ids) // num_micro, (micro + 1) * len(ids) // num_micro)
        share = Share(
            step=step,
            micro=micro,
            num_micro=num_micro,
            rank=rank,
            world_size=world_size,
            positions=positions[part],
            ids=ids[part],
            weights=None if weights is None else weights[part],
            speeds=None if speeds is None else tuple(speeds),
        )
        made.append(share)
    return tuple(made)


def smallest_share(share: Share) -> int:
    """Return the smallest number of samples that any rank has in a share's step, padding included."""
    total, size, speeds = share.step.size, share.world_size, share.speeds
    return total // size if speeds is None else min(share_sizes(total, world_size=size, speeds=speeds))


def share_sizes(count: int, *, world_size: int, speeds: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return how many samples each rank gets of a step of `count` samples, padding included, as `shares` cuts it.

    Args:
        count: samples of the global batch, padding included.
        world_size: number of ranks.
        speeds: see `shares`.

    Raises:
        ConfigError: there is not one speed for each rank.
    """
    begins = [_begin(count, rank, world_size, speeds) for rank in range(world_size + 1)]
    return tuple(high - low for low, high in itertools.pairwise(begins))


def _begin(total: int, rank: int, world_size: int, speeds: Sequence[int] | None) -> int:
    """Return the start of a rank's run."""
    if speeds is None:
        return rank * total // world_size
    if len(speeds) != world_size:
        raise ConfigError(f"shares needs one speed for each of the {world_size} ranks, got {len(speeds)}")
    each = int(total >= world_size)
    return rank * each + sum(speeds[:rank]) * (total - world_size * each) // sum(speeds)


def lone_share(ids: IntArray, resume: OrderState) -> Share:
    """Return the share of one rank alone in a step with all `ids`, int64[B]."""
    members = ListedIds(ids=ids, lanes=np.zeros_like(ids))
    step = Step(epoch=0, index=0, start=0, count=len(ids), size=len(ids), members=members, resume=resume)
    return shares(step, rank=0, world_size=1, num_micro=1)[0]


def sample_keys(seed: int, epoch: int, ids: IntArray) -> IntArray:
    """Return the keys of samples, int64[B]: f(seed, epoch, sample), the same at any world size and after a restart.

    The mixing is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
    2014), applied to the three inputs in turn. Keys are well spread, but not secret.

    Args:
        seed: seed of the order, any int.
        epoch: epoch, from 0.
        ids: int64[B], sample ids.
    """
    mask = (1 << 64) - 1
    mixed = mix_words(np.array([int(seed) & mask], dtype=np.uint64))
    mixed = mix_words(mixed ^ np.uint64(epoch))
    return mix_words(mixed ^ ids.astype(np.int64).view(np.uint64)).view(np.int64)


def mix_words(words: WordArray) -> WordArray:
    """Return mixed words, uint64 of the same shape: a bijection of each word."""
    mixed = words + np.uint64(GOLDEN)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
