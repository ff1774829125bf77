"""Data without an order: any iterable of batches, of unknown and unequal lengths, in step on all ranks.

A rank whose data have ended takes part with weight zero until all have ended. In the all-reduce that sums the weights
of a step, each rank also reports whether it has more: if none has, the epoch ends on all ranks at the same step.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rankwise.data.contract import JSON, BaseLoader, IntArray, ListedIds, OrderState, Share, Step
from rankwise.data.samples.dataset_batch import DatasetBatch, first_twice, move_tree
from rankwise.errors import ConfigError, StepError
from rankwise.train.loaders.foreign import as_loader, is_stream
from rankwise.train.loaders.stream_data import Sharing, count_samples, digest_of, first_rows, sharing_of, without_rows
from rankwise.train.models.passes import kept_random_state, seed_training
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("rankwise.train")
# A rank with more batches adds this to its sample count: a single number is sent, and no step has that many samples.
_MORE = 1 << 32
_EMPTY = np.zeros(0, dtype=np.int64)
_NOBODY = ListedIds(ids=_EMPTY, lanes=_EMPTY)


class _StreamBatch(DatasetBatch):
    """A micro-batch of a stream.

    Attributes:
        more: whether this rank has further batches after this step.
    """

    def __init__(self, share: Share, data: Any, *, uncut: Any, more: bool) -> None:
        super().__init__(share, data, uncut=uncut)
        self.may_skip = True  # only all ranks together know how many samples a step has
        self.more = more


def as_steps(data: Any, world: World) -> BaseLoader:
    """Return training data as a loader: a DataLoader, or another iterable of batches, is wrapped in a stream."""
    return StreamLoader(data, world=world) if is_stream(data) else as_loader(data)


def as_held_out(data: Any, world: World, *, together: bool = False) -> BaseLoader:
    """Return held-out data in a form for `evaluate`: each rank by itself, or all `together`."""
    loader = StreamLoader(data, world=world, lockstep=False) if is_stream(data) else as_loader(data)
    if isinstance(loader, StreamLoader):
        loader.together = together
    return loader


def counted_samples(batches: tuple[Any, ...]) -> int:
    """Return this rank's count for a step: its samples, and for a stream whether it has more."""
    num_samples = sum(int(batch.count) for batch in batches)
    return num_samples + (_MORE if isinstance(batches[0], _StreamBatch) and batches[0].more else 0)


def after_step(batch: Any, counted: int) -> tuple[int, OrderState]:
    """Return the samples of a step, and the state after it, from the sum of all ranks' counts."""
    num_more, num_samples = divmod(counted, _MORE)
    state: OrderState = batch.resume
    if num_more or not isinstance(batch, _StreamBatch):
        return num_samples, state
    return num_samples, replace(state, epoch=state.epoch + 1, position=0)


class StreamLoader(BaseLoader):
    """Implements `BatchLoader` for any iterable of batches: a torch `DataLoader`, a WebDataset, one of your own.

    Ranks may have any numbers of batches, of any sizes. A step takes the next `num_micro` of each; a rank with fewer,
    or none, takes part with weight zero, and the epoch ends when all have ended. One batch is pulled ahead, so that no
    step is empty. Call `mark_done` after each step, as in every loop (`ExactStep` and `Trainer` do).

    Missing guarantees are logged once on the main rank: which samples form a step depends on the
    number of ranks, and a run that was stopped in mid-epoch resumes there only

    - at the same world size and `num_micro`, and
    - if the iterable has `state_dict` and `load_state_dict` (torchdata's StatefulDataLoader), or is a DataLoader
      with a torch sampler: the batches already done are then read again and dropped.

    Otherwise the epoch starts again. `DatasetLoader` with an `Order` has none of these limits.

    It sets the epoch of a `DistributedSampler`, and removes the samples that the sampler repeats to give all ranks
    equally many. The batches of a DataLoader that reads in order (``shuffle=False``) are divided among ranks. One that
    shuffles without a DistributedSampler would give every sample to every rank, and is refused on several.

    Args:
        data: an iterable of batches: tensors, or dicts, lists and tuples of them, batch axis first. Each iteration is
            an epoch, a different one on each rank.
        world: this rank's world; `World.current()` if None.
        num_micro: batches of a rank that form a step, the same on all ranks.
        device: "auto" = the world's device, any torch device, or None to leave batches on their device.
        count: returns the number of samples of a batch; None = the length of its first tensor.
        lockstep: False for held-out data: each rank iterates over its own alone, without common steps (`evaluate`
            keeps the ranks of a sharded model together, whose forward pass is a collective).
        distinct: refuse ranks with bitwise equal first batches: they read the same data.

    Every rank makes one (they exchange facts), and iterates over it.

    Raises:
        ConfigError: it is not iterable, or it would not divide the samples among ranks; raised on every rank.
    """

    def __init__(
        self,
        data: Any,
        *,
        world: World | None = None,
        num_micro: int = 1,
        device: str | torch.device | None = "auto",
        count: Callable[[Any], int] | None = None,
        lockstep: bool = True,
        distinct: bool = True,
    ) -> None:
        self._world = world = joined_world(world, "a StreamLoader")
        self._num_micro, self._lockstep, self._distinct = num_micro, lockstep, distinct
        self._device = world.device if device == "auto" else device
        self._count = count or count_samples
        self._sharing = self._compare_ranks(data)
        self._state = OrderState(seed=world.seed, epoch=0, position=0, recipe=self._sharing.recipe)
        self._snapshots: dict[int, Any] = {}
        self.together = False
        self._rank_state = _RankState()

    def _compare_ranks(self, data: Any) -> Sharing:
        """Compare the ranks' data, and log missing guarantees once."""
        num_micro = self._num_micro
        sharing, error = None, "" if num_micro >= 1 else f"num_micro must be at least 1, got {num_micro}"
        try:
            sharing = sharing_of(data, self._world)
        except ConfigError as wrong:
            error = str(wrong)
        length = None if sharing is None else sharing.num_batches
        gathered = self._world.all_gather_object((error, num_micro, length, sharing and sharing.recipe))
        if wrong_ranks := {rank: said for rank, (said, *_) in enumerate(gathered) if said}:
            rank, said = next(iter(wrong_ranks.items()))
            raise ConfigError(said if len(wrong_ranks) == len(gathered) else f"rank {rank}: {said}")
        if len({(micro, recipe) for _, micro, _, recipe in gathered}) > 1:
            ranks = enumerate(gathered)
            listed = "; ".join(f"rank {rank}: {recipe}, num_micro={micro}" for rank, (_, micro, _, recipe) in ranks)
            raise ConfigError(f"the ranks have different kinds of data or different numbers of micro-batches: {listed}")
        assert sharing is not None
        lengths = [length for *_, length, _ in gathered]
        self._num_steps = None if None in lengths else max(-(-length // num_micro) for length in lengths)
        limits = sharing.limits_text(held_out=not self._lockstep)
        if self._world.is_main and limits:
            _LOG.warning("%s", limits)
        return sharing

    def __iter__(self) -> Iterator[tuple[DatasetBatch, ...]]:
        if not self._lockstep:
            yield from self._alone()
            return
        epoch, index = self._state.epoch, self._state.position
        self._snapshots = {}
        parts = self._parts(epoch, skip=index * self._num_micro)
        first, error = None, None
        try:
            first = next(parts, None)
        except Exception as caught:  # noqa: BLE001  (raised on every rank)
            error = caught
        self._world.raise_together(error)
        spare = self._spare(first, epoch, index)
        ahead = [] if first is None else [first]
        while True:
            taken = list(itertools.islice(itertools.chain(ahead, parts), self._num_micro))
            # resuming after this step must not skip the batch that is pulled ahead
            if self._sharing.is_stateful:
                self._snapshots[index + 1] = self._sharing.data.state_dict()
            ahead = list(itertools.islice(parts, 1))
            yield self._step(taken, spare, epoch, index, more=bool(ahead))
            if self._state.epoch != epoch:
                return
            if self._state.position != index + 1:
                raise StepError(
                    "a StreamLoader needs mark_done(report.resume) after each step: report.resume holds what the ranks "
                    "have agreed on, such as whether the epoch is over"
                )
            index += 1

    def _alone(self) -> Iterator[tuple[DatasetBatch, ...]]:
        epoch, parts = self._state.epoch, self._parts(self._state.epoch, skip=0)
        first = next(parts, None)
        spare = self._spare(first, epoch, 0) if self.together else None
        ahead = [] if first is None else [first]
        for index in itertools.count():
            taken = list(itertools.islice(itertools.chain(ahead, parts), 1))
            ahead = []
            if not (self._world.all_reduce(len(taken)) if self.together else taken):
                return
            yield self._step(taken, spare, epoch, index, more=True)

    def _parts(self, epoch: int, *, skip: int) -> Iterator[tuple[IntArray, Any]]:
        """Yield this rank's batches of an epoch with the ids of their samples, without repeated ones."""
        sharing, world, start = self._sharing, self._world, 0
        sharing.set_epoch(epoch)
        known = None if sharing.ids is None else itertools.islice(sharing.ids(), skip, None)
        num_read, can_seek = skip, sharing.is_stateful and skip
        with kept_random_state():  # a shuffle, and the workers' seeds, depend on (seed, epoch, rank) alone
            seed_training(world, "stream", epoch)
            if can_seek:
                if self._rank_state.position is None:
                    raise ConfigError(
                        "the state of this StreamLoader is in mid-epoch, but the position of its data on this rank is "
                        'unknown: restore its rank_state as well (parts={"order": Replicated(loader), "stream": '
                        "loader.rank_state})"
                    )
                sharing.data.load_state_dict(self._rank_state.position)
                num_read = 0
            batches = iter(sharing.batches)
            for data in itertools.islice(batches, num_read):
                start += self._count(data) if known is None else 0
            first = list(itertools.islice(batches, 1))
        for data in itertools.chain(first, batches):
            if known is None:
                num_samples = self._count(data)
                # consecutive numbers that no other rank uses
                yield np.arange(start, start + num_samples, dtype=np.int64) * world.world_size + world.rank, data
                start += num_samples
                continue
            ids, num_samples = next(known)
            if len(ids) == num_samples:
                yield ids, data
            elif len(ids):
                yield ids, first_rows(data, len(ids), num_samples)

    def _spare(self, first: tuple[IntArray, Any] | None, epoch: int, index: int) -> Any:
        """Return a stand-in for a rank without a batch: its own first samples, else those of another rank."""
        known = digest_of(first[1]) if first is not None and self._distinct else None
        there = self._world.all_gather_object((first is not None, known))
        ranks = [rank for rank, (has, _) in enumerate(there) if has]
        if not ranks and not index:
            raise ConfigError(
                f"no rank got a batch in epoch {epoch}: an iterator or generator is exhausted after its first epoch; "
                "pass an iterable that starts again each time, such as a DataLoader or an object with __iter__"
            )
        digests = {found for _, found in there}
        if len(there) > 1 and len(digests) == 1 and None not in digests:
            raise ConfigError(
                f"the first batch of epoch {epoch} is bit for bit the same on all {len(there)} ranks: each of them "
                "reads everything, and every sample would count several times. Let each rank read its own part "
                "(IterableDataset: islice(..., world.rank, None, world.world_size); WebDataset: split_by_node), or "
                "pass distinct=False if equal batches are intended"
            )
        mine = None if first is None else first_twice(first[1])
        if 0 < len(ranks) < len(there):
            sent = self._world.broadcast_object(mine if self._world.rank == ranks[0] else None, src=ranks[0])
            mine = sent if mine is None else mine
        return mine

    def _step(
        self, taken: list[tuple[IntArray, Any]], spare: Any, epoch: int, index: int, *, more: bool
    ) -> tuple[_StreamBatch, ...]:
        world = self._world
        resume = replace(self._state, epoch=epoch, position=index + 1)
        # count 0: unknown before the ranks have summed their counts
        step = Step(epoch=epoch, index=index, start=index, count=0, size=0, members=_NOBODY, resume=resume)
        made = []
        num_micro = self._num_micro if self._lockstep else 1
        for micro in range(num_micro):
            ids, data = taken[micro] if micro < len(taken) else (_EMPTY, None)
            share = Share(
                step=step,
                micro=micro,
                num_micro=num_micro,
                rank=world.rank,
                world_size=world.world_size,
                positions=ids,
                ids=ids,
                weights=None,
            )
            uncut = data if len(ids) else spare
            if self._device is not None:
                uncut = move_tree(uncut, self._device, non_blocking=self._sharing.pinned)
            made.append(_StreamBatch(share, uncut if len(ids) else without_rows(uncut), uncut=uncut, more=more))
        return tuple(made)

    @property
    def rank_state(self) -> _RankState:
        """Position of this rank's data: a part of a checkpoint besides the loader's own state."""
        return self._rank_state

    def __len__(self) -> int:
        """Return how many steps are left in the epoch according to the data; `sys.maxsize` if unknown."""
        return sys.maxsize if self._num_steps is None else max(self._num_steps - self._state.position, 0)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        if epoch != self._state.epoch:
            self._state = replace(self._state, epoch=epoch, position=0)

    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed."""
        self._rank_state.position = self._snapshots.get(state.position)
        self._snapshots = {state.position: self._rank_state.position}
        self._state = state

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done: epoch, and position counted in steps."""
        return {**self._state.to_json(), "world_size": self._world.world_size, "num_micro": self._num_micro}

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`; in mid-epoch only if that position can be found again, else the epoch starts again.

        `rank_state`, this rank's part, is restored before or after it.
        """
        mine = {"world_size": self._world.world_size, "num_micro": self._num_micro}
        old = OrderState.from_json({name: value for name, value in state.items() if name not in mine})
        if old.recipe != self._sharing.recipe:
            raise ConfigError(f"the state belongs to other data: {old.recipe}, but these are {self._sharing.recipe}")
        self._state = old
        why = ", ".join(f"{name} was {state[name]} and is {now}" for name, now in mine.items() if state[name] != now)
        if not (self._sharing.is_known or self._sharing.is_stateful):
            why = "these data have no state_dict, and their order is not known"
        if old.position and why:
            if self._world.is_main:
                text = "epoch %d starts again after %d of its steps, so their samples are used twice: %s"
                _LOG.warning(text, old.epoch, old.position, why)
            self._state = replace(old, position=0)


class _RankState:
    """The part of a checkpoint that belongs to a rank: the position of its iterable, None if unknown."""

    scope: Literal["rederived"] = "rederived"
    position: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = state["data"]
