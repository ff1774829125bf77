"""The ids of one step of an order: all ids, or a rank's share at the cost of that share only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rankwise.data.contract import IntArray, ListedIds
from rankwise.data.order.lanes import Grid, run_of_samples, samples_at

__all__ = ["OrderIds"]

# Number of samples of a share that are computed together, over several steps: enough to amortise a NumPy call, few
# enough for a start within a millisecond.
BLOCK = 1 << 11
# One id of a share costs as much as this many ids of consecutive positions: up to this many ranks, computing the
# whole step costs no more than a share.
ALONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderIds:
    """Implements the contract's `StepIds`. Pure and small, so each batch can carry a pickled copy.

    Attributes:
        grid: the parameters of the order.
        seed: of the order.
        epoch: of the step.
        start: first position of the step.
        count: real samples of the step.
        size: number of samples with padding.
        batch_size: of the order; decides which steps follow.
        shuffled: False if sample p is at position p.
    """

    grid: Grid
    seed: int
    epoch: int
    start: int
    count: int
    size: int
    batch_size: int
    shuffled: bool

    def listed(self) -> tuple[IntArray, IntArray]:
        """Return all ids and their lanes, padding last."""
        places: IntArray = np.arange(self.start, self.start + self.count, dtype=np.int64)
        lanes, ids = places % self.grid.lanes, places
        if self.shuffled:
            ids = run_of_samples(self.grid, self.seed, self.epoch, self.start, self.count)
        if self.size > self.count:
            # Pad with repeats of the step's own samples, each in the lane of its original: no extra reads.
            ids, lanes = np.resize(ids, self.size), np.resize(lanes, self.size)
        return ids, lanes

    def run(self, low: int, high: int) -> tuple[IntArray, IntArray]:
        """Return offsets and ids of the run [low, high) of the step, sorted by lane."""
        if self.size > self.count:  # only the last step of an epoch can be padded
            ids, their_lanes = self.listed()
            return ListedIds(ids=ids, lanes=their_lanes).run(low, high)
        if self.shuffled and (high - low) * ALONE < self.count == self.batch_size:
            first, number = self._block_of(high - low)
            offsets, found = _share_block(replace(self, start=first), low, high)
            return offsets[number].copy(), found[number].copy()
        lanes = self.grid.lanes
        offsets = _offsets(lanes, self.start % lanes, self.count, low, high)
        if not self.shuffled:
            return offsets, self.start + offsets
        return offsets, run_of_samples(self.grid, self.seed, self.epoch, self.start, self.count)[offsets]

    def _block_of(self, num_samples: int) -> tuple[int, int]:
        """Return the start of the block of steps that contains this step, and the step's number in it.

        After a resume with another batch size steps may begin anywhere, so blocks are counted from the first position
        that a step of this size can have.
        """
        number, origin = divmod(self.start, self.batch_size)
        steps = _num_steps(num_samples)
        return origin + number // steps * steps * self.batch_size, number % steps


def _num_steps(num_samples: int) -> int:
    return max(1, BLOCK // max(1, num_samples))


@lru_cache(maxsize=16)  # steps of one size begin in few different lanes, most often in one
def _offsets(lanes: int, first_lane: int, count: int, low: int, high: int) -> IntArray:
    """Return the offsets of the run [low, high) of a step sorted by lane, without sorting it; read-only.

    Args:
        lanes: of the order.
        first_lane: lane of the step's first position.
        count: samples of the step.
        low: first index of the run.
        high: index after its last.
    """
    found: IntArray = np.arange(low, high, dtype=np.int64)
    if lanes > 1:
        first = (np.arange(lanes, dtype=np.int64) - first_lane) % lanes  # offset of each lane's first position
        sizes = (count - 1 - first) // lanes + 1  # zero for lanes that begin after the end of the step
        ends = np.cumsum(sizes)
        lane = np.searchsorted(ends, found, side="right")
        found = first[lane] + (found - (ends - sizes)[lane]) * lanes
    found.flags.writeable = False
    return found


@lru_cache(maxsize=8)
def _share_block(step: OrderIds, low: int, high: int) -> tuple[IntArray, IntArray]:
    """Return offsets and ids of one rank's share, for this full step and those after it, int64[steps, high - low].

    Loops ask for steps in sequence; computing several together makes each id cheap.
    """
    grid, size = step.grid, step.batch_size
    steps = min(_num_steps(high - low), (grid.num_samples - step.start) // size)
    starts = step.start + size * np.arange(steps, dtype=np.int64)
    first_lanes = (starts % grid.lanes).tolist()  # all equal if the batch size is a multiple of the lanes
    offsets = np.stack([_offsets(grid.lanes, first_lane, size, low, high) for first_lane in first_lanes])
    ids = samples_at(grid, step.seed, step.epoch, (starts[:, None] + offsets).ravel()).reshape(offsets.shape)
    return offsets, ids
