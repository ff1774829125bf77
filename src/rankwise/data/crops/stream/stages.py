"""The stages of a stream and their shared state; separate from the pipeline, whose destruction stops them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from rankwise.data.crops.budget import Budget
from rankwise.data.crops.config import Config
from rankwise.data.crops.cores import cores_here, pin_thread
from rankwise.data.crops.devices import RankPlace
from rankwise.data.crops.exceptions import PoolStarved, ShutdownError, TryAgain
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.opener import Openings
from rankwise.data.crops.stream.reader import Ready, Result, StreamReader
from rankwise.data.crops.stream.schedule import Drained, Failure, Numbered, Planner, Puller, Work
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.place import Placer
from rankwise.data.feed.prefetch import ReadAhead
from rankwise.data.store.reader import BoxReader
from rankwise.data.store.remote import RemoteFiles

__all__ = ["Stages"]

_CLOSED = "the pipeline was closed: there are no more batches"
_UNBOUNDED = sys.maxsize  # the depth limits how far a stage runs ahead


class Stages:
    """Pulls, plans and reads, each stage in a thread of its own; the threads start with the first push.

    Attributes:
        num_taken: samples taken: in batches, as failures, or skipped.
    """

    def __init__(self, config: Config, place: RankPlace, budget: Budget, placer: Placer) -> None:
        self._config = config
        self.meters = Meters(gpu_bytes_committed=budget.ring_bytes, host_bytes_committed=budget.host_bytes)
        self.openings = Openings(
            capacity=config.num_metas,
            concurrency=config.metadata_io_concurrency,
            latency=config.metadata_latency,
            remote=None if config.remote is None else RemoteFiles(config.remote),
        )
        self.engine = _engine(config, place, num_slots=budget.num_slots)
        cap_bytes = budget.num_slots * budget.slot_limit_bytes
        memory = MemoryPool(0, pinned=placer.pinned, cap_bytes=cap_bytes, speaks=place.rank == 0)
        puller = self._puller = Puller(config, self.openings, self.meters)
        # the puller has one more in hand than those that lie ready
        self._pulled: ReadAhead[Iterable[Any], Numbered | Failure] = ReadAhead(
            puller, puller.pushes, depth=max(1, config.lookahead - 1), is_away=lambda: puller.is_away
        )
        self._planner = Planner(
            puller, self._pulled, config, openings=self.openings, engine=self.engine, meters=self.meters
        )
        self._planned: ReadAhead[Numbered | Failure | None, Work | Drained] = ReadAhead(
            self._planner, self._planner.samples, depth=1
        )
        self._reader = StreamReader(
            self._planner,
            self._planned,
            config,
            rank=place.rank,
            memory=memory,
            budget=budget,
            placer=placer,
            meters=self.meters,
        )
        cores = cores_here(config.numa_strategy, config.numa_node, device_node=place.numa_node)
        self._read: ReadAhead[Work | Drained, Result] = ReadAhead(
            self._reader, iter(self._planned.take, None), depth=budget.num_slots, on_thread=lambda: pin_thread(cores)
        )
        self._lock = threading.Lock()
        self._closed = False
        self.num_taken = self._num_errors = 0

    def push(self, samples: Iterable[Any]) -> None:
        """Add samples.

        Raises:
            ShutdownError: closed, or in a fork of the process that made it.
            RuntimeError: the system has no thread for it.
        """
        self._refuse_elsewhere()
        with self._lock:
            if self._closed:
                raise ShutdownError("the pipeline was closed: it accepts no more samples")
            for stage in (self._pulled, self._planned, self._read):  # first: where one cannot start, nothing is pushed
                stage.ask(0, beyond=_UNBOUNDED)
            self._puller.push(samples)

    @property
    def pending(self) -> bool:
        """Whether any pushed sample has not been taken, as far as known."""
        puller = self._puller
        if self._closed:
            return False
        if puller.num_pushed != puller.num_ended or puller.num_errors != self._num_errors:
            return True
        return puller.num_samples - self.num_taken != self._num_left

    @property
    def _num_left(self) -> int:
        """Number of samples left over because they do not fill a batch."""
        return self._puller.num_samples % self._config.samples_per_batch if self._config.drop_last else 0

    def take(self) -> Ready:
        """Return the next batch.

        Raises:
            BaseException: see `Pipeline.pop`.
        """
        self._refuse_elsewhere()
        timeout_s = self._config.pop_timeout_s
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.pending:
            try:
                result = self._read.take(timeout_s=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise PoolStarved(f"no batch within pop_timeout_s={timeout_s}: {self._why()}") from None
            if isinstance(result, Drained) and result.num_pushed != self._puller.num_pushed:
                continue  # it is older than the last push
            if result is None:
                raise ShutdownError(_CLOSED)
            if isinstance(result, Drained):
                break
            if isinstance(result, Ready):
                self._settle(len(result.samples))
                return result
            self._settle(result.num_samples)
            if result.error is not None:
                self.meters.add(samples_failed=result.num_samples)
                raise result.error
            self.meters.add(samples_skipped=result.num_samples)
        if self._closed:
            raise ShutdownError(_CLOSED)
        raise self._drained()

    def _settle(self, num_samples: int) -> None:
        with self._lock:
            self.num_taken += num_samples
            self._num_errors += num_samples == 0

    def _drained(self) -> TryAgain:
        if self._num_left:
            return TryAgain(
                f"everything was popped except {self._num_left} samples, which do not fill a batch of "
                f"{self._config.samples_per_batch}: push more, or use drop_last=False"
            )
        return TryAgain("everything that was pushed has been popped: push more samples, or stop")

    def _why(self) -> str:
        number, size = self._planner.num_waiting, self._config.samples_per_batch
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

    def close(self, *, waits: bool = True) -> None:
        """Stop the threads and join those that can be woken; leave a thread inside the user's iterable alone.

        Args:
            waits: whether to join: not in a garbage collection, which may run in any thread.
        """
        if self._read.is_elsewhere:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._read.close(waits=False)
        if waits:
            for stage in (self._read, self._planned, self._pulled):
                stage.close()
            self.engine.close()
        self._reader.skips.say_total()


def _engine(config: Config, place: RankPlace, *, num_slots: int) -> BoxReader:
    """Return the engine that reads boxes; warn on rank 0 if it may keep fewer files open than are in flight."""
    engine = BoxReader(
        cache=config.cache_bytes,
        threads=config.n_io_threads,
        max_indexes=config.n_shard_index_cache,
        remote=config.remote_options,
    )
    # at least one file each; the arrays are not known yet
    wanted = num_slots * config.samples_per_batch * len(config.all_fields)
    place.warn_few_handles(lambda: wanted, capacity=engine.max_open_files)
    return engine
