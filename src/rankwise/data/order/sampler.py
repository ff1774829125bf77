"""A batch sampler for torch's ``DataLoader``, and `shard` for explicit lists. Plain Python, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from rankwise.data.contract import JSON, OrderState, Share, Step, num_micro_batches, shares, whole_number
from rankwise.data.order.order import Order
from rankwise.errors import ConfigError


class BatchSampler:
    """One rank's batches of an order, for ``DataLoader(dataset, batch_sampler=...)``.

    Iterating goes from the current state to the end of its epoch and yields one list of ids per micro-batch. Only
    `mark_done` moves the state, not iterating: a DataLoader pulls batches long before they are used. Without resuming,
    `mark_done` is optional: after a complete iteration without a mark, the next one yields the next epoch.

    Create it on every rank with the same order; there is no communication.

    Args:
        order: which samples form which step.
        rank: this rank.
        world_size: number of ranks.
        micro_batch: most samples of one rank in one pass; a step then yields several lists. None = one list per step.

    Attributes:
        order: the order; after `load_state_dict`, the resumed one.
        scope: "replicated": the state is equal on all ranks.

    Raises:
        ConfigError: the rank is not in the world, `micro_batch` is below 1, or the order draws its samples.
    """

    scope: Literal["replicated"] = "replicated"

    def __init__(self, order: Order, *, rank: int = 0, world_size: int = 1, micro_batch: int | None = None) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"BatchSampler needs 0 <= rank < world_size, got rank {rank} of {world_size}")
        if order.draw is not None:
            raise ConfigError(
                "the ids of an order with draws are draw numbers, not sample ids: use a row loader, which draws rows "
                "(rankwise.data.rows.OrderedLoader(collection, order=order))"
            )
        num_micro_batches(order.batch_size, world_size=world_size, micro_batch=micro_batch)
        self.order = order
        self.rank = rank
        self.world_size = world_size
        self.micro_batch = micro_batch
        self._seek(order.start())

    def __len__(self) -> int:
        """Return how many lists an iteration started now would yield."""
        full, tail = self._step_sizes(self._next_origin())
        return full * self._num_micro(self.order.batch_size) + (self._num_micro(tail) if tail else 0)

    def __iter__(self) -> Iterator[list[int]]:
        """Return the lists of ids from the current state to the end of its epoch.

        Raises:
            ConfigError: this or another rank would get an empty list in some step, which a DataLoader cannot collate.
                Raised at once, not when that step comes.
        """
        origin = self._next_origin()
        self._refuse_empty(origin)
        self._seek(origin)
        return self._lists(origin)

    def steps(self) -> Iterator[tuple[Step, tuple[Share, ...]]]:
        """Return each step from the current state to the end of its epoch, with this rank's micro-batches of it.

        For loops that need more than ids: pass ``step.resume`` to `mark_done`. Shares may be empty here.
        """
        origin = self._next_origin()
        self._seek(origin)
        return self._steps(origin)

    def mark_done(self, done: OrderState | int) -> None:
        """Record what was used; call it after ``optimizer.step``, on every rank or on those that save.

        Args:
            done: the state after the last used step (``step.resume``), or how many lists were used since this iteration
                began (``i + 1`` in ``for i, batch in enumerate(loader)``). A step does not count until all its
                micro-batches were used: a resumed run repeats it.

        Raises:
            ConfigError: the state belongs to another order, or this iteration has fewer lists.
        """
        state = done if isinstance(done, OrderState) else self._state_after(done)
        self.order.num_steps(state)
        self._state, self._marked, self._ended = state, True, False

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        if self._next_origin().epoch != epoch:
            self._seek(self.order.start(epoch))

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done, as JSON. Lists that were only pulled do not count."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after `state`; world size and batch size may have changed.

        Raises:
            ConfigError: the state belongs to another order.
        """
        saved = OrderState.from_json(state)
        self.order = self.order.resumed(saved)
        self._seek(saved)

    def _seek(self, state: OrderState) -> None:
        self._state = state
        # Start of the current iteration; `mark_done` counts from it.
        self._origin = state
        self._marked = False
        # Whether the current iteration ran to its end without a mark.
        self._ended = False

    def _next_origin(self) -> OrderState:
        """Return where an iteration started now would begin."""
        if self._ended or self.order.num_steps(self._state) == 0:
            return self.order.start(self._state.epoch + 1)
        return self._state

    def _steps(self, origin: OrderState) -> Iterator[tuple[Step, tuple[Share, ...]]]:
        state = origin
        for _ in range(self.order.num_steps(origin)):
            step = self.order.step(state)
            state = step.resume
            num_micro = self._num_micro(step.count)
            yield step, shares(step, rank=self.rank, world_size=self.world_size, num_micro=num_micro)
        # Ignore the late end of an older iteration.
        if self._origin is origin and not self._marked:
            self._ended = True

    def _lists(self, origin: OrderState) -> Iterator[list[int]]:
        for _, parts in self._steps(origin):
            for part in parts:
                yield part.ids.tolist()

    def _step_sizes(self, state: OrderState) -> tuple[int, int]:
        """Return how many full steps are left in the state's epoch, and the size of a smaller last step (or 0)."""
        size = self.order.batch_size
        full = (self.order.samples - state.position) // size
        has_tail = self.order.num_steps(state) > full
        return full, (self.order.samples - state.position) % size if has_tail else 0

    def _num_entries(self, count: int) -> int:
        """Return the samples of a step with `count` real ones, padding included."""
        return self.order.batch_size if self.order.remainder == "pad" else count

    def _num_micro(self, count: int) -> int:
        return num_micro_batches(self._num_entries(count), world_size=self.world_size, micro_batch=self.micro_batch)

    def _state_after(self, num_lists: int) -> OrderState:
        full, tail = self._step_sizes(self._origin)
        per_full, per_tail = self._num_micro(self.order.batch_size), self._num_micro(tail) if tail else 0
        if not 0 <= num_lists <= full * per_full + per_tail:
            raise ConfigError(
                f"mark_done({num_lists}): the iteration that began at epoch {self._origin.epoch}, position "
                f"{self._origin.position} has {full * per_full + per_tail} lists; count only the lists used since then"
            )
        if tail and num_lists == full * per_full + per_tail:
            return self.order.state_at(epoch=self._origin.epoch, position=self.order.samples)
        steps = min(full, num_lists // per_full)
        position = self._origin.position + steps * self.order.batch_size
        return self.order.state_at(epoch=self._origin.epoch, position=position)

    def _refuse_empty(self, origin: OrderState) -> None:
        full, tail = self._step_sizes(origin)
        for count, is_tail in ((self.order.batch_size if full else 0, False), (tail, True)):
            entries, num_micro = self._num_entries(count), self._num_micro(count)
            smallest = entries // self.world_size
            if count and smallest < num_micro:
                raise ConfigError(self._why_empty(entries, num_micro, is_tail=is_tail))

    def _why_empty(self, entries: int, num_micro: int, *, is_tail: bool) -> str:
        world, smallest = self.world_size, entries // self.world_size
        cut = f", cut into {num_micro} micro-batches of at most {self.micro_batch}" if num_micro > 1 else ""
        which = "the last step of the epoch" if is_tail else "a full step"
        drop = 'remainder="drop", ' if is_tail else ""
        return (
            f"{which} has {entries} samples for {world} ranks: some ranks get {entries} // {world} = {smallest}{cut}, "
            f"so a list would be empty, and a DataLoader cannot collate an empty list. Use {drop}a batch_size "
            "with enough samples per rank, or rankwise.data.samples.DatasetLoader, which handles empty shares"
        )


How = Literal["contiguous", "strided"]


@overload
def shard(items: int, *, rank: int, world_size: int, how: How = ...) -> range: ...
@overload
def shard(items: Sequence[Any], *, rank: int, world_size: int, how: How = ...) -> Sequence[Any]: ...


def shard(items: int | Sequence[Any], *, rank: int, world_size: int, how: How = "contiguous") -> Sequence[Any]:
    """Return this rank's part of a list. Each item belongs to exactly one rank; sizes differ by at most one.

    No communication. A part is empty if there are fewer items than ranks.

    Args:
        items: a number n for range(n), or anything that can be sliced (list, tuple, str, NumPy array, ...).
        rank: 0 <= rank < world_size.
        world_size: number of ranks.
        how: "contiguous" runs (neighbouring items share files and chunks), or "strided": rank, rank + world_size, ...

    Returns:
        A slice of `items`, so of the same type; a range if a number was given.

    Raises:
        ConfigError: the rank is not in the world, `how` is unknown, or `items` cannot be sliced.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"shard needs 0 <= rank < world_size, got rank {rank} of {world_size}")
    if how not in ("contiguous", "strided"):
        raise ConfigError(f'shard needs how="contiguous" or "strided", got {how!r}')
    whole = range(whole_number("the number of items of a shard", items, least=0)) if isinstance(items, int) else items
    if not (hasattr(whole, "__len__") and hasattr(whole, "__getitem__")) or hasattr(whole, "keys"):
        raise ConfigError(f"shard needs a number or a sequence, got {type(items).__name__}: pass list(...) of it")
    if how == "strided":
        return whole[rank::world_size]
    count = len(whole)
    return whole[rank * count // world_size : (rank + 1) * count // world_size]
