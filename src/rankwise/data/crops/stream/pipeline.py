"""`Pipeline`: pushed samples to batches, in their order."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, final

from rankwise.data.crops.batch import Batch, Parked, waitable
from rankwise.data.crops.budget import host_memory_bytes, settle
from rankwise.data.crops.config import Config
from rankwise.data.crops.devices import bind_device
from rankwise.data.crops.exceptions import InvalidArgument, TryAgain
from rankwise.data.crops.sample import Sample
from rankwise.data.crops.stats import Stats
from rankwise.data.crops.stream.reader import Ready
from rankwise.data.crops.stream.resolver import check_sample
from rankwise.data.crops.stream.stages import Stages
from rankwise.data.feed.place import make_placer
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["Pipeline"]

_LOG = logging.getLogger("rankwise.crops")
_GPU_ONLY = ("max_chunks_per_wave", "max_substreams_per_chunk", "n_chunk_layout_cache")
_said: set[str] = set()


@final
class Pipeline:
    """Batches of pushed samples, a context manager. The crops of an index come from `IndexPipeline`.

    Samples are pulled out of what is pushed by a thread of the pipeline, as far ahead as `Config.lookahead_samples`;
    their arrays are opened, their batches planned and read ahead too, as far as there are buffers. Row i of a batch is
    the i-th sample. A sample that cannot be read is raised by the `pop` that comes to it, and the rest of its batch is
    what the next `pop` returns; nothing else is lost.

    Args:
        config: the configuration.

    Raises:
        ConfigError: it was given an index or an order.
        InvalidArgument: the device is not there, or does not agree with the one in use.
        BudgetExceeded: the batches do not fit the memory; the message adds it up.
    """

    def __init__(self, config: Config, *, order: None = None) -> None:
        if not isinstance(config, Config) or order is not None:
            more = "" if order is None else " and an order"
            raise ConfigError(
                f"Pipeline takes a Config, for samples that are pushed, got {config!r}{more}. "
                "The crops of an index come from IndexPipeline(CropIndex(URIs, shape=...), order=Order(index, "
                "batch_size=...)), where batch_size counts the crops of all ranks together"
            )
        self.config = config
        place = bind_device(config.device)
        self._device = place.device
        self._placer = make_placer(place.device)
        on_host = place.device is None or place.device.type == "cpu"
        budget = settle(
            config,
            on_host=on_host,
            sharers=place.sharers,
            local_ranks=place.local_ranks,
            host_bytes=host_memory_bytes(),
        )
        _say_what_is_idle(config)
        _LOG.info("a stream of crops takes\n%s", budget)
        self._stages = Stages(config, place, budget, self._placer)
        self._parked = Parked()
        self._lock = threading.Lock()
        self._num_batches = 0
        self._num_pushed: int | None = 0
        self._num_fill_batches = 0
        weakref.finalize(self, self._stages.close, waits=False)

    @property
    def device(self) -> torch.device | None:
        """Where batches go; None = NumPy arrays on the host."""
        return self._device

    @property
    def pending(self) -> bool:
        """Whether something that was pushed has not been popped, as far as is known."""
        return self._stages.pending

    def push(self, samples: Iterable[Sample]) -> None:
        """Add samples: a list, a generator, an endless one. They follow what was pushed before.

        Returns at once: samples are pulled by a thread of the pipeline. What the iterable raises is raised by the `pop`
        that comes to that place; the iterable is then dropped, others stay. The beginning of a list is checked here.

        Raises:
            InvalidArgument: it is no iterable, or a list that begins with samples that do not fit the configuration.
            ShutdownError: the pipeline was closed.
        """
        if isinstance(samples, Sample):
            raise InvalidArgument("push takes an iterable of samples, got one Sample: push([sample])")
        if not isinstance(samples, Iterable) or isinstance(samples, str | bytes | Mapping):
            raise InvalidArgument(f"push takes an iterable of samples, got {type(samples).__name__}")
        if isinstance(samples, list | tuple):
            for number, sample in enumerate(samples[: self.config.lookahead]):
                check_sample(sample, self.config, number)
        known = self._num_pushed is not None and isinstance(samples, Sized)
        self._stages.push(samples)
        self._num_pushed = self._num_pushed + len(samples) if known else None  # type: ignore[operator, arg-type]

    def pop(self) -> Batch:
        """Return the next batch, waiting for it at most ``config.pop_timeout_s``.

        The last batch of everything that was pushed may have fewer samples (unless ``drop_last=True``).

        Raises:
            TryAgain: everything that was pushed has been popped.
            PoolStarved: the time is up; the message says what it waited for. Popping again goes on waiting.
            ShutdownError: the pipeline was closed.
            DamacyError: a sample of this batch cannot be read. The next `pop` returns the others of the batch.
        """
        self._parked.sweep()
        with self._stages.meters.time("pop_wait"):
            taken = self._stages.take()
        return self._batch(taken)

    def batches(self, num_batches: int) -> Iterator[Batch]:
        """Yield `num_batches` batches; raises what `pop` raises."""
        for _ in range(num_batches):
            yield self.pop()

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches until everything that was pushed has been popped."""
        while True:
            try:
                batch = self.pop()
            except TryAgain:
                return
            yield batch
            del batch  # the caller alone decides how long it is held

    def __len__(self) -> int:
        """Number of batches to come, of what was pushed so far.

        Raises:
            TypeError: something without a length was pushed.
        """
        if self._num_pushed is None:
            raise TypeError("the number of batches is not known: something without a length was pushed")
        left, size = max(0, self._num_pushed - self._stages.num_taken), self.config.samples_per_batch
        return left // size if self.config.drop_last else -(-left // size)

    def stats(self) -> Stats:
        """Return what was done so far."""
        read = self._stages.engine.stats
        remembered, looked_at = self._stages.engine.file_lookups
        return replace(
            self._stages.meters.stats,
            shard_index_hits=remembered,
            shard_index_misses=looked_at,
            array_meta=self._stages.openings.stats,
            read_bytes=read.read_bytes,
            decoded_bytes=read.decoded_bytes,
            retries=read.retries,
        )

    def stats_reset(self) -> None:
        """Start the times and counts of `stats` anew; hits of caches and committed memory stay."""
        self._stages.meters.reset()
        self._stages.engine.reset_stats()
        self._stages.openings.reset_delays()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop at once: what was not popped is dropped, samples that were not pulled are not pulled.

        Batches and views that were handed out stay valid. Calling it twice is fine.
        """
        self._stages.close()

    def _batch(self, item: Ready) -> Batch:
        fields = self._transformed(self._placer.receive(item.placed), item)
        item.buffer.give_back()  # from here on the fields alone keep it, and what shares their memory
        batch_id, first_fill = self._count(item)
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
            give_back=_giver(item, self._parked, shares_memory=self._placer.shares_memory),
        )

    def _count(self, item: Ready) -> tuple[int, bool]:
        """Number of the batch, and whether it is the first one that is all fill."""
        self._stages.meters.add(
            batches_emitted=1,
            waves_emitted=1,
            samples_emitted=len(item.samples),
            fill_batches=item.all_fill,
        )
        with self._lock:
            batch_id, self._num_batches = self._num_batches, self._num_batches + 1
            first_fill = item.all_fill and self._num_fill_batches == 0
            self._num_fill_batches += item.all_fill
        return batch_id, first_fill

    def _transformed(self, fields: dict[str, Any], item: Ready) -> Mapping[str, Any]:
        if self.config.batch_transform is None:
            return fields
        made = self.config.batch_transform(dict(fields), self._placer.keys(item.key))
        if not isinstance(made, Mapping):
            raise InvalidArgument(f"batch_transform= returns a dict of fields, it returned {type(made).__name__}")
        return made

    def _stream(self) -> int:
        if self._device is None or self._device.type != "cuda":
            return 0
        import torch

        return int(torch.cuda.current_stream(self._device).cuda_stream)


def _giver(item: Ready, parked: Parked, *, shares_memory: bool) -> Any:
    """What releases a batch. It keeps the lease, so that a batch on a device counts as long as it is held."""
    buffer, placed = item.buffer, item.placed

    def give_back(event: Any) -> None:
        done = waitable(event)
        if done is None:
            return
        if shares_memory:
            buffer.busy = done
        else:
            parked.park(done, (placed, buffer))

    return give_back


def _warn_all_fill(item: Ready) -> None:
    uris = sorted({sample.uri for sample in item.samples})
    some = ", ".join(uris[:3]) + (", ..." if len(uris) > 3 else "")
    warnings.warn(
        f"a whole batch of crops (samples {int(item.numbers[0])} to {int(item.numbers[-1])}, of {some}) holds nothing "
        "but fill values: no chunk was ever written there. Is the copy whole, and is it the right level? Later ones "
        "are counted in stats().fill_batches only",
        UserWarning,
        stacklevel=4,
    )


def _say_what_is_idle(config: Config) -> None:
    """Options that only a GPU decoder would heed are accepted, and said once."""
    defaults = {each.name: each.default for each in fields_of(Config)}
    idle = [name for name in _GPU_ONLY if getattr(config, name) != defaults[name] and name not in _said]
    if idle:
        _said.update(idle)
        _LOG.warning("no effect here, where chunks are decoded on the CPU: %s", ", ".join(idle))
