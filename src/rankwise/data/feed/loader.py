"""`FeedLoader`: any source and any order to batches on a device, read in a background thread."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Never, NoReturn, Unpack, cast

from rankwise._process.loader_worker import LoaderWorker, current_worker
from rankwise.data.contract import Order, OrderState, Share, Source, whole_number
from rankwise.data.feed.batch import FeedBatch, LoaderStats, MicroBatches, ReadBatch, step_keys
from rankwise.data.feed.cursor import Cursor, CursorLoader, check_fits
from rankwise.data.feed.memory.csr import num_cols_of
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.options import FeedOptions, find_place, refuse_unknown, warn_small_cache, window_depth
from rankwise.data.feed.passes import Passes, Running
from rankwise.data.feed.place import Placer, make_placer
from rankwise.data.feed.place_jax import is_jax_target, make_jax_placer
from rankwise.data.feed.prefetch import close_at_exit
from rankwise.data.feed.reader import SkipBudget, StepReader, share_place
from rankwise.data.feed.transform import BatchTransform, SampleTransform, check_transform, counted_samples
from rankwise.data.feed.workers.iterable import (
    SentBatch,
    check_sendable,
    raising,
    sent_fields,
    warn_in_memory,
)
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.data.feed.workers.torch_dataset import LoaderDataset
    from rankwise.world import World

_OF_A_PROCESS = ("_placer", "_kept", "_memory", "_under_way")  # what another process cannot use


class FeedLoader(CursorLoader):
    """Implements `BatchLoader`: iterating yields one tuple of micro-batches per step, to the end of the epoch.

    A background thread plans two steps ahead and reads up to `depth` steps ahead. The consumer may keep batches,
    fields and views of them: ``list(loader)`` is correct. Memory is refilled only when no view of it is left. On a CPU
    the tensors lie in this memory (no copy); on a CUDA device they are copies made on a separate stream.

    The position moves when a step is marked done, not when it is pulled: iterating again starts after the last step
    marked done. If no step is marked done, the epoch starts from its beginning.

    Args:
        source: samples by index.
        order: which samples form which step; its batch size is that of all ranks together.
        micro_batch: most samples of this rank in one batch; None = its whole share at once.
        device: where tensors go: "auto" = the world's device, any torch device, None = NumPy arrays and SciPy matrices,
            ``"jax"`` = JAX arrays of this process, a ``jax.sharding.Sharding`` = global ones: padded to one shape,
            ``batch.weights`` telling which rows are real.
        world: gives rank, world size and device; None = `World.current()`.
        depth: steps that may lie ready; 0 reads in the calling thread; None = as many steps as a window of the order
            lasts, limited to 128 MiB, and at least 2. `Locality.group_steps` reads that many steps as one group: a
            whole window of up to 384 MiB.
        transform: ``transform(fields, key) -> fields`` for one sample on the reader thread: a dict of NumPy arrays that
            it may change (ragged fields: SciPy CSR matrices of one row), and a key that is the same at any world size.
        batch_transform: ``batch_transform(fields, keys) -> fields`` for a whole batch, on the consumer's thread and
            device, when the batch is handed over; batches may be empty.
        fields: the fields to read; None = all.
        on_bad_sample: "raise", or how many damaged samples this rank may skip, over all epochs: `ids`, `key` and
            `count` cover the samples that arrived. Storage errors are never skipped. Pass the same on all ranks.
        across_epochs: whether to read the first `depth` steps of the next epoch while the last steps of this one are in
            use, within the same memory; they are dropped if the next iteration begins elsewhere. None = only if the
            source is ``stateless``: its samples depend on nothing but their share. A `transform` is never called early.

    Raises:
        ConfigError: an argument is out of range, there is no such field, or the order was made for other data.
        MissingExtraError: a device was asked for and torch, or JAX, is not installed.
        TypeError: there is no such argument.
    """

    _more_options: ClassVar[tuple[str, ...]] = ()  # names that a subclass takes for its source
    _buffer_limit_bytes: int | None = None  # of one micro-batch in host memory
    _on_thread: Callable[[], None] | None = None  # called on each background thread before it reads
    _before: OrderState | None = None  # where the previous pass began
    _worker: LoaderWorker | None = None

    def __init__(
        self,
        source: Any,
        *by_position: Never,
        order: Order | None = None,
        micro_batch: int | None = None,
        device: str | torch.device | jax.sharding.Sharding | None = "auto",
        world: World | None = None,
        depth: int | None = None,
        **options: Unpack[FeedOptions],
    ) -> None:
        if by_position:
            raise TypeError(f"{type(self).__name__} takes all but the source by name: order=, micro_batch=, ...")
        refuse_unknown(type(self), options, more=self._more_options)
        if not isinstance(order, Order):
            raise ConfigError(
                f"{type(self).__name__} needs order=, which says what samples form a step, such as Order(source, "
                f"batch_size=64); got {order!r}"
            )
        transform, batch_transform = options.get("transform"), options.get("batch_transform")
        check_transform("transform", "transform(fields, key)", transform)
        check_transform("batch_transform", "batch_transform(fields, keys)", batch_transform)
        place = find_place(world, device)
        source = counted_samples(source, order)
        check_fits(order, num_samples=source.num_samples, fingerprint=source.fingerprint)
        fields = options.get("fields")
        self.source: Source = source if fields is None else source.select(fields)
        super().__init__(Cursor(order, rank=place.rank, world_size=place.world_size, micro_batch=micro_batch))
        self._cursor.follows_world = world is None
        self._device, self._transform = place.device, transform
        wanted = window_depth(source, order, world_size=place.world_size) if depth is None else depth
        self._depth = whole_number("depth, the number of steps read ahead,", wanted, least=0)
        if is_jax_target(place.device) and not isinstance(place.device, str):
            self._cursor.equal_because = "sharding= needs equally many rows on each process"
        shares_memory = self._placer.shares_memory  # raises for a bad device now
        if shares_memory and transform is None and batch_transform is not None:
            fused = self.source.fused_with(batch_transform)  # a source that can transform whole batches does it itself
            if fused is not None:
                self.source, batch_transform = fused, None
        self._batch_transform = batch_transform
        self._caps: dict[str, Any] = {}  # limits for all batches, those that are kept included; see `MemoryPool`
        across_epochs = options.get("across_epochs")
        wanted = self.source.stateless if across_epochs is None else across_epochs
        self._across_epochs, self._is_last = bool(wanted and self._depth), False
        self._kept: Running | None = None
        self._memory: tuple[MemoryPool, MemoryPool] | None = None
        self._under_way: list[Callable[[], None]] = []
        self._stats = LoaderStats()
        self._budget = SkipBudget(options.get("on_bad_sample", "raise"))
        self._warn_small_cache(order)

    def _warn_small_cache(self, order: Order) -> None:
        warn_small_cache(self.source, order, rank=self._cursor.rank, world_size=self._cursor.world_size)

    @cached_property
    def _placer(self) -> Placer:
        cursor = self._cursor
        if not is_jax_target(self._device):
            return make_placer(cast("Any", self._device))
        return make_jax_placer(
            self._device,
            order=cursor.order,
            world_size=cursor.world_size,
            micro_batch=cursor.micro_batch,
            fields=self.source.fields,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} steps to the end of the epoch; {self.source!r})"

    def __getstate__(self) -> dict[str, Any]:
        check_sendable(self._device)
        return {name: value for name, value in self.__dict__.items() if name not in _OF_A_PROCESS} | _begun_anew()

    def __getitem__(self, index: object) -> NoReturn:
        """Raise an error for indexing that says what to do instead."""
        raise ConfigError(
            "a loader is iterated, not indexed: `for batches in loader`. With torch's DataLoader use "
            "DataLoader(loader.as_dataset(), batch_size=None)"
        )

    @property
    def stats(self) -> LoaderStats:
        """Totals of the steps that were handed out so far."""
        return self._stats

    def __iter__(self) -> Iterator[tuple[FeedBatch, ...]]:
        """Yield the micro-batches of each step to the epoch's end; a DataLoader worker yields its part of the steps."""
        return close_at_exit(self._batches()) if current_worker() is None else self._in_dataloader()

    def as_dataset(self) -> LoaderDataset:
        """Return this loader as torch's `IterableDataset`: ``DataLoader(loader.as_dataset(), batch_size=None)``.

        Each worker reads its part of the steps; the DataLoader yields the batches of a plain loop, in the same order.
        Call `set_epoch`, `mark_done` and `state_dict` on this loader: workers follow its position.
        """
        from rankwise.data.feed.workers.torch_dataset import LoaderDataset

        return LoaderDataset(self, self._in_dataloader)

    def _in_dataloader(self) -> Iterator[tuple[FeedBatch, ...]]:
        """Yield the steps of this process in a pass of a DataLoader; `Cursor.begin_pass` says where the pass begins."""
        worker = current_worker()
        try:
            if worker is not None:
                self._enter(worker)
            self._cursor.begin_pass(worker)
        except Exception as error:  # noqa: BLE001  (in a worker that stays, raising it here would end the process)
            return raising(error)
        return self._batches()

    def _enter(self, worker: LoaderWorker) -> None:
        """Become the loader of a worker: read with the worker's own objects, into CPU memory."""
        if self._worker is None:
            check_sendable(self._device)
            # objects copied by the fork have threads and locks that do not exist here: keep them alive, never use them
            self._brought = {name: value for name, value in self.__dict__.items() if name in _OF_A_PROCESS}
            self.__dict__ |= _begun_anew()
            self._placer = make_placer(None if self._device is None else "cpu")
            self._budget = self._budget.shared(self._cursor.starts.count_damaged)
            self._across_epochs = False
            warn_in_memory(self._device, rank=self._cursor.rank, worker=worker)
        self._worker = worker

    def _batches(self) -> Iterator[tuple[FeedBatch, ...]]:
        self._check_open()
        self._cursor.check_ranks()
        reading = self._begin()
        num_left = reading.passes.num_steps
        held: tuple[FeedBatch, ...] = ()
        self._under_way.append(reading.close)
        try:
            self._check_open()  # `close` may have been called in between
            while num_left and (held := self._next(reading)):
                num_left -= 1
                yield held
                _leave(held)
                held = ()  # drop our reference: the batch lives only while the consumer keeps it
            self._check_open()
        finally:
            self._under_way.remove(reading.close)
            _leave(held)
            self._repeats.ends(reading.passes.start, whole=not num_left)
            self._end(reading, keep=not num_left)

    def _begin(self) -> Running:
        """Continue with what was prefetched if it begins where the loader stands, else start over."""
        goes_on, self._is_last = self._across_epochs and not self._is_last, False
        reading, self._kept = self._kept, None
        if reading is None or not reading.ask(goes_on=goes_on):
            if reading is not None:
                self._end(reading, keep=False)
            reading = self._new_reading(goes_on=goes_on)
            reading.ask(goes_on=goes_on)
        self._before = reading.passes.start
        if self._worker is None:
            self._repeats.begins(reading.passes.start)
        return reading

    def _new_reading(self, *, goes_on: bool) -> Running:
        if self._memory is None or self._memory[0].is_elsewhere:
            options: dict[str, Any] = {"pinned": self._placer.pinned, "warns": self._cursor.rank == 0}
            self._memory = MemoryPool(0, **options, **self._caps), MemoryPool(0, **options)
        passes = Passes(self._cursor, before=self._before, goes_on=goes_on, worker=self._worker)
        reader = self._reader(*self._memory, budget=self._budget)
        return Running(passes, reader, depth=self._own_depth, on_thread=self._on_thread)

    @property
    def _own_depth(self) -> int:
        """Steps that may lie ready in this process: an equal part of `depth` for each worker."""
        return self._depth if self._worker is None else -(-self._depth // self._worker.count)

    def _end(self, reading: Running, *, keep: bool) -> None:
        """Keep what was prefetched for the next epoch, or stop reading."""
        if keep and reading.passes.goes_on and self._across_epochs and self._kept is None:
            self._kept = reading
        else:
            reading.close()

    def peek(self) -> FeedBatch:
        """Read and return the first micro-batch of the next iteration; it stays valid like any other batch.

        Position and `stats` do not change. A `transform` is called a second time for these samples.

        Raises:
            ConfigError: no step is left.
            SampleError: a sample cannot be read, and may not be skipped.
        """
        self._check_open()
        reader = self._reader(MemoryPool(), None, budget=copy.copy(self._budget))
        with closing(reader.read(Passes(self._cursor, before=None, goes_on=False))) as steps:
            step = next(steps, None)
        if step is None:
            raise ConfigError("peek found no further step: the order is at its end")
        batch = self._batch(step.batches[0])
        batch.leave()
        return batch

    @property
    def samples(self) -> Source:
        """The source."""
        return self.source

    def start_prefetch(self) -> bool:
        """Begin to read what the next iteration needs, in the background; returns at once.

        Make the loader before the model, and both are ready at the same time. It reads the first `depth` steps from its
        position, within the memory of an iteration, and the next iteration takes them. An iteration that begins
        elsewhere (after `set_epoch` or `load_state_dict`) drops them. The position does not move, `transform` is not
        called and errors are not raised before the iteration begins. Calling it twice is fine.

        Returns:
            Whether anything is read: not with ``depth=0``, during an iteration, or if the source is not ``stateless``
            and `across_epochs` was not requested.

        Raises:
            ConfigError: the loader was closed.
        """
        self._check_open()
        may_start = self._depth and (self._across_epochs or self.source.stateless)
        if not may_start or self._under_way:
            return False
        if self._kept is not None and not self._kept.is_next:
            self._drop_kept()
        if self._kept is None:
            self._kept = self._new_reading(goes_on=self._across_epochs and not self._is_last)
            self._kept.start()
        return True

    def expect_last_epoch(self) -> None:
        """Say that no iteration will follow the next one soon: do not prefetch at its end."""
        self._is_last = True

    def close(self) -> None:
        """Stop reading, close the source's files and threads, and log how many samples were skipped. Twice is fine.

        An iteration under way, and any that begins later, raises an error. Batches and the position stay valid; other
        loaders reopen the source. Any thread may call it.
        """
        self._is_closed, self._across_epochs = True, False
        self._drop_kept()
        for close in tuple(self._under_way):
            close()
        self._budget.log_total(self._cursor.rank)
        self.source.close()

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._end(kept, keep=False)

    def _reader(self, memory: MemoryPool, stages: MemoryPool | None, *, budget: SkipBudget) -> StepReader:
        """Return a reader; without `stages` it reads every step by itself."""
        return StepReader(
            source=self.source,
            memory=memory,
            placer=self._placer,
            transform=None if self._transform is None else SampleTransform(self._transform, num_cols_of(self.source)),
            depth=self._own_depth,
            budget=budget,
            together=self._depth if stages is not None and self.source.locality.group_steps else 1,
            stages=memory if stages is None else stages,
            limit_bytes=self._buffer_limit_bytes,
        )

    def _next(self, reading: Running) -> tuple[FeedBatch, ...]:
        """Hand over the next step; an empty tuple when reading has ended. `rankwise profile` times this method."""
        asked_s = time.perf_counter()
        step = reading.take()
        if step is None:
            return ()
        self._stats = self._stats.after(step, waited_s=time.perf_counter() - asked_s)
        return MicroBatches(map(self._batch, step.batches))

    def _batch(self, read: ReadBatch) -> FeedBatch:
        fields = received = self._placer.receive(read.placed)
        if self._batch_transform is not None:
            fields = self._transformed(self._batch_transform, read.share, dict(received))  # it may add its own
        about: Any = {"num_lost": read.num_lost, "may_skip": self._budget.may_skip}
        if self._worker is not None:  # a batch for another process has memory of its own
            sent = SentBatch(read.share, sent_fields(fields, received), **about)
            read.lent.give_back()
            return sent
        weights = self._placer.weights(read.share)
        return FeedBatch(
            read.share, fields, lent=read.lent, is_view=self._placer.shares_memory, weights=weights, **about
        )

    def _transformed(self, transform: BatchTransform, share: Share, fields: dict[str, Any]) -> dict[str, Any]:
        keys = self._placer.keys(step_keys(share.step, share.ids))
        try:
            made = transform(fields, keys)
        except Exception as error:
            error.add_note(f"in batch_transform= at {share_place(share)}")
            raise
        if not isinstance(made, Mapping):
            raise ConfigError(f"batch_transform= must return a dict of fields, it returned {type(made).__name__}")
        return dict(made)


def _begun_anew() -> dict[str, Any]:
    return {"_kept": None, "_memory": None, "_under_way": []}


def _leave(batches: tuple[FeedBatch, ...]) -> None:
    for batch in batches:
        batch.leave()
