"""`Pipeline`: turns pushed samples into batches, in order."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, final

from rankwise.data.crops.batch import Batch, drop_finished
from rankwise.data.crops.budget import Caps, stream_budget
from rankwise.data.crops.config import Config
from rankwise.data.crops.devices import bind_device
from rankwise.data.crops.exceptions import InvalidArgument, PoolStarved, ShutdownError, TryAgain
from rankwise.data.crops.sample import Sample
from rankwise.data.crops.stats import Meters, Stats
from rankwise.data.crops.stream.reader import Ready, Result, SkipRule, StreamReader
from rankwise.data.crops.stream.resolver import check_sample
from rankwise.data.crops.stream.schedule import END, Work
from rankwise.data.feed.memory.lease import Done
from rankwise.data.feed.place import make_placer
from rankwise.data.feed.prefetch import ReadAhead
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("rankwise.crops")
_UNBOUNDED = sys.maxsize  # the depth limits how far a stage runs ahead
_GPU_ONLY = ("max_chunks_per_wave", "max_substreams_per_chunk", "n_chunk_layout_cache")
_said: set[str] = set()


@final
class Pipeline:
    """Batches of pushed samples, a context manager. For crops of an index use `IndexPipeline`.

    A thread of the pipeline pulls samples from the pushed iterables, up to `Config.lookahead_samples` ahead; their
    arrays are opened, and their batches planned and read ahead, too, as far as there are buffers. Row i of a batch is
    the i-th sample. If a sample cannot be read, the `pop` that reaches it raises the error, and the next `pop` returns
    the rest of its batch; no other sample is lost.

    Args:
        config: the configuration.

    Raises:
        ConfigError: the argument is an index or an order.
        InvalidArgument: the device does not exist, or differs from the one in use.
        BudgetExceeded: the batches do not fit the memory; the message lists the parts.
    """

    def __init__(self, config: Config, *, order: None = None) -> None:
        if not isinstance(config, Config) or order is not None:
            more = "" if order is None else " and an order"
            raise ConfigError(
                f"Pipeline needs a Config, for pushed samples, got {config!r}{more}. "
                "For the crops of an index use IndexPipeline(CropIndex(URIs, shape=...), order=Order(index, "
                "batch_size=...)), where batch_size counts the crops of all ranks together"
            )
        self.config = config
        place = bind_device(config.device)
        self._device = place.device
        self._placer = make_placer(place.device)
        caps = Caps(
            place=place,
            max_gpu_memory_bytes=config.max_gpu_memory_bytes,
            max_host_memory_bytes=config.max_host_memory_bytes,
        )
        budget = stream_budget(config, caps)
        _warn_unused_options(config)
        _LOG.info("a stream of crops uses\n%s", budget)
        self._meters = Meters(gpu_bytes_committed=budget.ring_bytes, host_bytes_committed=budget.host_bytes)
        self._reader = StreamReader(config, place=place, budget=budget, placer=self._placer, meters=self._meters)
        self._planner = self._reader.planner
        self._puller = self._planner.puller
        self._read: ReadAhead[Work, Result] = ReadAhead(
            self._reader,
            iter(self._reader.planned.take, None),
            depth=budget.num_slots,
            on_thread=place.pinning(config.numa_strategy, config.numa_node),
        )
        self._stages = (self._planner.pulled, self._reader.planned, self._read)  # each in a thread of its own
        self._released: deque[tuple[Done, object]] = deque()  # batches that work on the device still reads
        self._lock = threading.Lock()
        self._closed = self._warned_fill = False
        self._num_batches = 0
        self._num_pushed: int | None = 0
        self._num_taken = self._num_errors = 0  # samples in batches, raised or skipped; errors of iterables
        self._end = weakref.finalize(self, _end, self._read, self._reader.skips)  # nothing else may keep `self` alive

    @property
    def device(self) -> torch.device | None:
        """Device of the batches; None = NumPy arrays on the host."""
        return self._device

    @property
    def pending(self) -> bool:
        """Whether any pushed sample has not been popped, as far as known."""
        puller = self._puller
        if self._closed:
            return False
        if puller.num_pushed != puller.num_ended or puller.num_errors != self._num_errors:
            return True
        return puller.num_samples - self._num_taken != self._num_left

    @property
    def _num_left(self) -> int:
        """Number of samples left over because they do not fill a batch."""
        return self._puller.num_samples % self.config.samples_per_batch if self.config.drop_last else 0

    def push(self, samples: Iterable[Sample]) -> None:
        """Add samples: a list, a generator, also an endless one. They follow those pushed before.

        Returns at once: a thread of the pipeline pulls the samples. The `pop` that reaches an error of the iterable
        raises it; that iterable is then dropped, others stay. The first items of a list are checked here.

        Raises:
            InvalidArgument: it is not an iterable, or a list whose first samples do not fit the configuration.
            ShutdownError: the pipeline was closed, or made in a process that this one was forked from.
            RuntimeError: the system has no thread for it.
        """
        if isinstance(samples, Sample):
            raise InvalidArgument("push needs an iterable of samples, got one Sample: push([sample])")
        if not isinstance(samples, Iterable) or isinstance(samples, str | bytes | Mapping):
            raise InvalidArgument(f"push needs an iterable of samples, got {type(samples).__name__}")
        if isinstance(samples, list | tuple):
            for number, sample in enumerate(samples[: self.config.lookahead]):
                check_sample(sample, self.config, number)
        length = len(samples) if isinstance(samples, Sized) else None
        self._refuse_elsewhere()
        with self._lock:
            if self._closed:
                raise ShutdownError("the pipeline was closed: it accepts no more samples")
            for stage in self._stages:  # first: where one cannot start, nothing is pushed
                stage.ask(0, beyond=_UNBOUNDED)
            self._puller.push(samples)
            if self._num_pushed is not None:
                self._num_pushed = None if length is None else self._num_pushed + length

    def pop(self) -> Batch:
        """Wait at most ``config.pop_timeout_s`` for the next batch, and return it.

        The last batch of all pushed samples may have fewer samples (unless ``drop_last=True``).

        Raises:
            TryAgain: all pushed samples have been popped.
            PoolStarved: no batch came in time; the message says what it waited for. The next call continues to wait.
            ShutdownError: the pipeline was closed.
            DamacyError: a sample of this batch cannot be read. The next `pop` returns the others of the batch.
        """
        drop_finished(self._released)
        with self._meters.time("pop_wait"):
            taken = self._take()
        return self._batch(taken)

    def batches(self, num_batches: int) -> Iterator[Batch]:
        """Yield `num_batches` batches; raises what `pop` raises."""
        for _ in range(num_batches):
            yield self.pop()

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches until all pushed samples have been popped."""
        while True:
            try:
                batch = self.pop()
            except TryAgain:
                return
            yield batch
            del batch  # the caller alone decides how long it is held

    def __len__(self) -> int:
        """Number of remaining batches of the samples pushed so far.

        Raises:
            TypeError: an iterable without a length was pushed.
        """
        if self._num_pushed is None:
            raise TypeError("the number of batches is unknown: an iterable without a length was pushed")
        left, size = max(0, self._num_pushed - self._num_taken), self.config.samples_per_batch
        return left // size if self.config.drop_last else -(-left // size)

    def stats(self) -> Stats:
        """Return the statistics so far."""
        engine = self._reader.engine
        read, (remembered, looked_at) = engine.stats, engine.file_lookups
        return replace(
            self._meters.stats,
            shard_index_hits=remembered,
            shard_index_misses=looked_at,
            array_meta=self._reader.openings.stats,
            read_bytes=read.read_bytes,
            decoded_bytes=read.decoded_bytes,
            retries=read.retries,
        )

    def stats_reset(self) -> None:
        """Reset the times and counts of `stats`; cache hits and committed memory stay."""
        self._meters.reset()
        self._reader.engine.reset_stats()
        self._reader.openings.reset_delays()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop at once: drop batches that were not popped, and pull no more samples.

        Batches and views that were handed out stay valid. Calling it twice is fine.
        """
        if self._read.is_elsewhere:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for stage in reversed(self._stages):  # a thread inside the user's iterable is left alone
            stage.close()
        self._reader.engine.close()
        self._end()

    def _take(self) -> Ready:
        self._refuse_elsewhere()
        timeout_s = self.config.pop_timeout_s
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.pending:
            try:
                result = self._read.take(timeout_s=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise PoolStarved(f"no batch within pop_timeout_s={timeout_s}: {self._why()}") from None
            if result is None:
                break
            if result is END:
                continue  # of what had been pushed then
            if isinstance(result, Ready):
                self._count_taken(len(result.samples))
                return result
            self._count_taken(result.num_samples)
            if result.error is not None:
                self._meters.add(samples_failed=result.num_samples)
                raise result.error
            self._meters.add(samples_skipped=result.num_samples)
        if self._closed:
            raise ShutdownError("the pipeline was closed: there are no more batches")
        if self._num_left:
            raise TryAgain(
                f"everything was popped except {self._num_left} samples, which do not fill a batch of "
                f"{self.config.samples_per_batch}: push more, or use drop_last=False"
            )
        raise TryAgain("everything that was pushed has been popped: push more samples, or stop")

    def _count_taken(self, num_samples: int) -> None:
        with self._lock:
            self._num_taken += num_samples
            self._num_errors += num_samples == 0

    def _why(self) -> str:
        number, size = self._planner.num_waiting, self.config.samples_per_batch
        if doing := self._reader.doing or self._planner.doing:
            return doing
        if self._puller.is_away:
            return (
                f"the pushed iterable has yielded no further sample yet ({number} of {size} of a batch have arrived): "
                "it is slow, or waits for something"
            )
        return f"{number} of the {size} samples of a batch have arrived"

    def _refuse_elsewhere(self) -> None:
        if self._read.is_elsewhere:
            raise ShutdownError(
                "the pipeline was created in a process that this one was forked from: its threads do not exist here. "
                "Create a pipeline in each process"
            )

    def _batch(self, item: Ready) -> Batch:
        received = self._placer.receive(item.placed)
        # from here on only the fields, and arrays that share their memory, keep it alive: also those in an error of
        # `batch_transform` that is kept
        item.buffer.give_back()
        fields = self._transformed(received, item)
        self._meters.add(
            batches_emitted=1,
            waves_emitted=1,
            samples_emitted=len(item.samples),
            fill_batches=item.all_fill,
        )
        with self._lock:
            batch_id, self._num_batches = self._num_batches, self._num_batches + 1
            first_fill = item.all_fill and not self._warned_fill
            self._warned_fill |= item.all_fill
        if first_fill:
            _warn_all_fill(item)
        return Batch(
            fields,
            main=self.config.field,
            samples=item.samples,
            numbers=item.numbers,
            key=item.key,
            batch_id=batch_id,
            ready_stream=self._stream(),
            hold=self._holder(item),
        )

    def _holder(self, item: Ready) -> Callable[[Done], None]:
        """Return what keeps a batch until an event. It has the lease: a batch on a device counts while it is held."""
        if self._placer.shares_memory:
            return item.buffer.lease.wait_for
        released, kept = self._released, (item.placed, item.buffer)
        return lambda done: released.append((done, kept))

    def _transformed(self, fields: dict[str, Any], item: Ready) -> Mapping[str, Any]:
        if self.config.batch_transform is None:
            return fields
        keys = self._placer.keys(item.key)
        try:
            made = self.config.batch_transform(dict(fields), keys)
        except Exception as error:
            error.add_note(f"in batch_transform= of the samples {', '.join(map(str, item.numbers))}, by order of push")
            raise
        if not isinstance(made, Mapping):
            raise InvalidArgument(f"batch_transform= must return a dict of fields, it returned {type(made).__name__}")
        return made

    def _stream(self) -> int:
        if self._device is None or self._device.type != "cuda":
            return 0
        import torch

        return int(torch.cuda.current_stream(self._device).cuda_stream)


def _end(read: ReadAhead[Any, Any], skips: SkipRule) -> None:
    """Stop without waiting: a garbage collection may run this in any thread."""
    if not read.is_elsewhere:
        read.close(waits=False)
        skips.log_total()


def _warn_all_fill(item: Ready) -> None:
    uris = sorted({sample.uri for sample in item.samples})
    some = ", ".join(uris[:3]) + (", ..." if len(uris) > 3 else "")
    warnings.warn(
        f"a whole batch of crops (samples {int(item.numbers[0])} to {int(item.numbers[-1])}, of {some}) holds only "
        "fill values: no chunk was ever written there. Check that the copy is complete and the level right. Later ones "
        "are only counted in stats().fill_batches",
        UserWarning,
        stacklevel=4,
    )


def _warn_unused_options(config: Config) -> None:
    """Warn once about accepted options that only a GPU decoder would use."""
    defaults = {each.name: each.default for each in fields_of(Config)}
    idle = [name for name in _GPU_ONLY if getattr(config, name) != defaults[name] and name not in _said]
    if idle:
        _said.update(idle)
        _LOG.warning("no effect here, as chunks are decoded on the CPU: %s", ", ".join(idle))
