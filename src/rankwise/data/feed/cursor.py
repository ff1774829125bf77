"""The position of a loader: the last state marked done, not the last step pulled. Also lengths of full epochs."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rankwise._process.loader_worker import LoaderWorker, current_worker
from rankwise.data.contract import (
    JSON,
    BaseLoader,
    Order,
    OrderState,
    Share,
    Step,
    num_micro_batches,
    shares,
    whole_speeds,
)
from rankwise.data.feed.workers.starts import PassStarts
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.data.feed.workers.torch_dataset import LoaderDataset

_LOG = logging.getLogger("rankwise.data")


class FullLength(BaseLoader):
    """A loader whose length is that of the whole epoch. Made by `CursorLoader.with_full_length`.

    A loader that was resumed after 4 of 15 steps has length 11. Lightning counts the 4 itself and compares with 15, so
    it would end the epoch 4 steps early. Lightning also calls ``sampler.set_epoch`` at the start of each epoch: after
    resuming between two epochs, only this call names the epoch. The loader does everything else.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: CursorLoader) -> None:
        self.loader = loader

    def as_dataset(self) -> LoaderDataset:
        """Return the loader's dataset, with this length."""
        from rankwise.data.feed.workers.torch_dataset import LoaderDataset

        return LoaderDataset(self, self.loader.as_dataset().iterate)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        """Number of steps of the whole epoch that the loader is in."""
        return self.loader.num_epoch_steps

    @property
    def sampler(self) -> Self:
        """The loader itself: training loops call `set_epoch` on it."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        self.loader.set_epoch(epoch)

    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed."""
        self.loader.mark_done(state)

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`; the world size may have changed."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Close the loader."""
        self.loader.close()


class Cursor:
    """Where a loader on one rank stands, and the shares of the steps that follow; reader threads have it, too.

    Args:
        order: which samples form which step.
        rank: the rank whose shares it yields.
        world_size: number of ranks.
        micro_batch: most samples of one rank in one pass; None = the whole share at once.

    Attributes:
        speeds: of each rank, as `shares` takes them; None cuts equal shares. A pass under way keeps its speeds.
        equal_because: why this loader must cut equal shares; "" if speeds may cut them.
        follows_world: whether rank and size come from `World.current()`; each iteration then checks them.
        starts: the memory by which workers of a DataLoader, which get a copy of this object, learn the position.

    Raises:
        ConfigError: the rank is not in the world, or `micro_batch` is below 1.
    """

    def __init__(self, order: Order, *, rank: int, world_size: int, micro_batch: int | None) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"a loader needs 0 <= rank < world_size, got rank {rank} of {world_size}")
        num_micro_batches(1, world_size=world_size, micro_batch=micro_batch)  # raises for a bad micro_batch now
        self.order = order
        self.rank = rank
        self.world_size = world_size
        self.micro_batch = micro_batch
        self.follows_world = False
        self.speeds: tuple[int, ...] | None = None
        self.equal_because = ""
        self._done = self.order.start(0)
        self._code = self._coded()
        self.starts = PassStarts(self._done.epoch, self._done.position, self._code)

    @property
    def done(self) -> OrderState:
        """The last state marked done or set; if a DataLoader has begun another epoch since, the start of that epoch."""
        if (begun := self.starts.begun()) is not None:
            self._done = self._state(*begun)
        return self._done

    @done.setter
    def done(self, state: OrderState) -> None:
        self._done = state
        self.starts.publish(state.epoch, state.position, self._code)

    def seek(self, state: OrderState, *, order: Order, speeds: tuple[int, ...] | None) -> None:
        """Stand at a state of an order; from there shares are cut by speeds."""
        self.order, self.speeds = order, speeds
        self._code = self._coded()
        self.done = state

    def _coded(self) -> int:
        """Return a number that identifies order and speeds; see `PassStarts`."""
        return zlib.crc32((self.order.recipe + ("" if self.speeds is None else str(self.speeds))).encode())

    def check_ranks(self) -> None:
        """Refuse, when an iteration begins, a process group other than the one that the loader was made for.

        Raises:
            ConfigError: rank or world size has changed.
        """
        if not self.follows_world or current_worker() is not None:  # workers serve the rank that started them
            return
        from rankwise.world.adopt import known_world

        world = known_world()
        if world is not None and (world.rank, world.world_size) != (self.rank, self.world_size):
            raise ConfigError(
                f"this loader was made for rank {self.rank} of {self.world_size}, but this process is rank "
                f"{world.rank} of {world.world_size} of a process group that was made later: samples would be read "
                "twice or never. Create the loader after the group (inside `with rankwise.bind()`, after "
                "init_process_group, in Lightning's train_dataloader()); to keep it as it is pass world=, such as "
                "World.single()"
            )

    def begin_pass(self, worker: LoaderWorker | None) -> None:
        """Go to where the next pass of a DataLoader begins.

        Args:
            worker: the worker that this process is; None = it is not a worker.

        Raises:
            ConfigError: the loader got another order or other speeds after this worker was started.
        """
        start = self.starts.begin(worker, repeats=_is_sequential(self.order))
        if start.order != self._code:
            raise ConfigError(
                "the loader resumed an order with other lanes or other shares, which workers that were "
                "started before do not know: call load_state_dict and set_speeds before the first epoch of the "
                "DataLoader, or use persistent_workers=False"
            )
        self._done = self._state(start.epoch, start.position)

    def _state(self, epoch: int, position: int) -> OrderState:
        start = self.order.start(epoch)
        return start if position == start.position else replace(start, position=position)

    def steps(self) -> Iterator[Step]:
        """Yield the steps from the last one marked done to the end of its epoch; this does not mark them done."""
        state = self.done
        for _ in range(self.order.num_steps(state)):
            step = self.order.step(state)
            yield step
            state = step.resume

    def shares(self, step: Step, speeds: tuple[int, ...] | None) -> tuple[Share, ...]:
        """Return this rank's micro-batches of a step. All ranks get the same number; some of them may be empty."""
        size = self.world_size
        num_micro = num_micro_batches(step.size, world_size=size, micro_batch=self.micro_batch, speeds=speeds)
        return shares(step, rank=self.rank, world_size=size, num_micro=num_micro, speeds=speeds)


class CursorLoader(BaseLoader):
    """The part of the contract's `BatchLoader` that a cursor implements; subclasses add the iteration.

    Args:
        cursor: where the loader stands.
    """

    _closed_error: ClassVar[type[Exception]] = ConfigError  # of an iteration after `close`

    def __init__(self, cursor: Cursor) -> None:
        self._cursor, self._is_closed = cursor, False
        self._repeats = Repeats(cursor.order, rank=cursor.rank)

    @property
    def order(self) -> Order:
        """The order, with the lanes of the state that was loaded."""
        return self._cursor.order

    @property
    def micro_batch(self) -> int | None:
        """Most samples of this rank in one batch; None = its whole share at once."""
        return self._cursor.micro_batch

    @property
    def speeds(self) -> tuple[int, ...] | None:
        """The speeds by which shares are cut; None if the shares are equal."""
        return self._cursor.speeds

    @property
    def takes_speeds(self) -> bool:
        """Whether shares may be cut by speed; `equal_because` names the exceptions."""
        return True

    @property
    def equal_because(self) -> str:
        """Why this loader cuts equal shares only; "" if it need not."""
        return self._cursor.equal_because

    def set_speeds(self, speeds: Sequence[float] | None) -> None:
        """Cut each step's shares in proportion to the speeds of the ranks, from the next iteration on.

        Samples, their order and the global batch do not change; only the number of samples per rank does. `state_dict`
        contains the speeds, so a run resumed on as many ranks uses them again. Pass the same on every rank.

        Args:
            speeds: one per rank, in rank order, in any unit; rounded to 1/64 of the fastest. None makes the shares
                equal.

        Raises:
            ConfigError: there is not one for each rank, one is not a positive number, or this loader cuts equal shares
                only.
        """
        cursor = self._cursor
        if speeds is not None and cursor.equal_because:
            raise ConfigError(f"this loader cuts equal shares only: {cursor.equal_because}; remove the speeds")
        whole = None if speeds is None else whole_speeds(speeds, world_size=cursor.world_size)
        cursor.seek(cursor.done, order=cursor.order, speeds=whole)

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed_error("the loader was closed: create a new one and load this one's state")

    def __len__(self) -> int:
        return self._cursor.order.num_steps(self._cursor.done)

    @property
    def num_epoch_steps(self) -> int:
        """Steps of the whole epoch, done or not; ``len`` counts the remaining ones."""
        order = self._cursor.order
        return order.num_steps(order.start(self._cursor.done.epoch))

    def with_full_length(self) -> FullLength:
        """Return this loader for a loop that counts steps from the beginning of an epoch, as Lightning does.

        Its length is that of the whole epoch, also after resuming, and it accepts the epochs that the loop sets. This
        loader does everything else.
        """
        return FullLength(self)

    def as_dataset(self) -> LoaderDataset:
        """Return this loader as a dataset of torch's DataLoader.

        Raises:
            ConfigError: it has workers of its own.
        """
        raise ConfigError(f"a {type(self).__name__} has its own workers: pass num_workers= to it and iterate over it")

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        cursor, self._repeats.is_chosen = self._cursor, True
        cursor.done = cursor.done if epoch == cursor.done.epoch else cursor.order.start(epoch)

    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` (``batch.resume``) has completed.

        Raises:
            ConfigError: the state belongs to another order, or is no state.
        """
        mine = self._cursor.done
        if not isinstance(state, OrderState):
            raise ConfigError(f"mark_done needs the state after a step, batch.resume; got {type(state).__name__}")
        if state.recipe != mine.recipe or state.seed != mine.seed:
            raise ConfigError(
                f"mark_done got the state of another order (recipe {state.recipe}, seed {state.seed}); this loader has "
                f"{mine.recipe}, seed {mine.seed}: pass batch.resume of a batch of this loader"
            )
        self._cursor.done = state

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done, and the speeds if the shares are not equal.

        Steps that were pulled but not marked done do not count.
        """
        state, speeds = self._cursor.done.to_json(), self._cursor.speeds
        return state if speeds is None else {**state, "speeds": list(speeds)}

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`, at any world size.

        An order that derived its lanes from the batch size adopts the lanes of the state. Saved speeds are dropped if
        the number of ranks has changed; the shares are then equal.

        Raises:
            ConfigError: the state belongs to other data, another kind of order or another seed.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(f"load_state_dict needs what state_dict() returned, a dict; got {type(state).__name__}")
        speeds: Any = state.get("speeds")
        wanted = OrderState.from_json({name: value for name, value in state.items() if name != "speeds"})
        order = self._cursor.order.resumed(wanted)
        now = order.start(wanted.epoch)
        if (now.recipe, now.seed) != (wanted.recipe, wanted.seed):
            raise ConfigError(
                f"the saved state belongs to another order: it has recipe {wanted.recipe} and seed {wanted.seed}, this "
                f"loader's order has {now.recipe} and {now.seed}. Use the same data, kind of order and seed, "
                "or start over"
            )
        same_ranks = speeds and len(speeds) == self._cursor.world_size
        self._cursor.seek(wanted, order=order, speeds=tuple(map(int, speeds)) if same_ranks else None)


class Repeats:
    """Remembers the last pass of a loader, and warns once if the next one is the same.

    Args:
        order: orders that are not shuffled repeat by design.
        rank: only rank 0 warns.

    Attributes:
        is_chosen: whether the caller has set the next epoch, as an evaluation does each time: then it may repeat.
    """

    def __init__(self, order: Order, *, rank: int) -> None:
        self._quiet = rank != 0 or _is_sequential(order)
        self._shown: OrderState | None = None
        self.is_chosen = False

    def begins(self, start: OrderState) -> None:
        """Check a pass that begins there."""
        chosen, self.is_chosen = self.is_chosen, False
        if self._quiet or chosen or self._shown != start:
            return
        self._quiet = True
        _LOG.warning(
            "epoch %d was read completely, but no step was marked done: the same batches are read again. For the next "
            "epoch call loader.mark_done(batch.resume) after each step, or loader.set_epoch(n); for held-out data "
            'Order(..., kind="sequential") silences this warning',
            start.epoch,
        )

    def ends(self, start: OrderState, *, whole: bool) -> None:
        """Remember a pass that ends."""
        self._shown = start if whole else None


def check_fits(order: Order, *, num_samples: int, fingerprint: str | None) -> None:
    """Refuse an order that was made for other data, as far as the order can tell.

    Raises:
        ConfigError: the order has another number of samples, or the fingerprint of other data.
    """
    total = order.samples
    if total is not None and total != num_samples:
        raise ConfigError(
            f"the order has {total} samples, the data have {num_samples}: create it from the data, Order(source, ...)"
        )
    wanted = order.fingerprint
    if order.draw is not None and wanted != fingerprint:
        raise ConfigError(
            "the order draws its samples, which only the loader of its own rows can do; these are other data: "
            "create the order without balance=, weights= and mix="
        )
    if wanted is not None and fingerprint is not None and wanted != fingerprint:
        raise ConfigError(
            f"the order was made for other data (fingerprint {wanted}, the source has {fingerprint}): create it from "
            "this source, Order(source, ...)"
        )


def _is_sequential(order: Order) -> bool:
    """Whether each epoch of an order is the same by design."""
    return order.kind == "sequential" and order.draw is None
