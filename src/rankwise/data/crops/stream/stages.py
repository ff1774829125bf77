"""The threads of a stream and what they share, apart from the pipeline: its end is what stops them."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, sample_keys
from rankwise.data.crops.budget import Budget
from rankwise.data.crops.config import Config
from rankwise.data.crops.devices import RankPlace
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.flow import Flow
from rankwise.data.crops.stream.opener import Openings
from rankwise.data.crops.stream.planner import Failure, Numbered, Planner, Puller, Ready, Work
from rankwise.data.crops.stream.reader import StreamReader
from rankwise.data.crops.tuning import cores_here
from rankwise.data.feed.memory.lease import Leases
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.place import Placer
from rankwise.data.store.files import say_few_handles, system_file_limit
from rankwise.data.store.reader import BoxReader
from rankwise.data.store.remote import RemoteFiles

__all__ = ["Stages"]

_LOG = logging.getLogger("rankwise.crops")
_JOIN_S = 30.0


class Stages:
    """Pulls, plans and reads in three threads, which start with the first push.

    Args:
        config: the configuration.
        place: device and rank.
        budget: memory.
        placer: puts batches on the device.
    """

    def __init__(self, config: Config, place: RankPlace, budget: Budget, placer: Placer) -> None:
        self.flow: Flow[Numbered, Work, Ready | Failure] = Flow(
            batch_size=config.samples_per_batch, lookahead=config.lookahead, drop_last=config.drop_last
        )
        self.meters = Meters(gpu_bytes_committed=budget.ring_bytes, host_bytes_committed=budget.host_bytes)
        self.openings = Openings(
            capacity=config.num_metas,
            concurrency=config.metadata_io_concurrency,
            latency=config.metadata_latency,
            remote=None if config.remote is None else RemoteFiles(config.remote),
        )
        self.engine = BoxReader(
            cache=config.cache_bytes,
            threads=config.n_io_threads,
            max_indexes=config.n_shard_index_cache,
            remote=config.remote_options,
        )
        if place.rank == 0:
            self._say_few_handles(config, place, budget)
        cap_bytes = budget.num_slots * budget.slot_limit_bytes
        memory = MemoryPool(0, pinned=placer.pinned, cap_bytes=cap_bytes, speaks=place.rank == 0)
        flow = self.flow
        self._leases = Leases(is_awaited=lambda: flow.is_awaited, has_room=memory.has_room)
        flow.on_wait = self._leases.wake
        seed, rank = config.seed, place.rank
        puller = Puller(self.flow, config, self.openings, self.meters)
        planner = Planner(self.flow, config, self.openings, self.engine, self.meters)
        self._reader = StreamReader(
            self.flow,
            config,
            leases=self._leases,
            memory=memory,
            budget=budget,
            placer=placer,
            keys=lambda work: _keys(work, seed, rank),
            meters=self.meters,
            cores=cores_here(config.numa_strategy, config.numa_node, device_node=place.numa_node),
        )
        self._threads = tuple(
            threading.Thread(target=stage.run, name=f"rankwise-crops-{name}", daemon=True)
            for name, stage in (("pull", puller), ("plan", planner), ("read", self._reader))
        )
        self._lock = threading.Lock()
        self._started = self._closed = False

    def _say_few_handles(self, config: Config, place: RankPlace, budget: Budget) -> None:
        in_flight = budget.num_slots * config.samples_per_batch * len(config.all_fields)
        say_few_handles(
            wanted=in_flight,  # one file each at least; which arrays there will be is not known yet
            capacity=self.engine.max_open_files,
            local_ranks=place.local_ranks,
            system_limit=system_file_limit(),
        )

    def push(self, samples: Any) -> bool:
        """Add samples; False if closed."""
        with self._lock:
            if not self._started and not self._closed:
                self._started = True
                _close_at_exit(self)
                for thread in self._threads:
                    thread.start()
        return self.flow.push(samples)

    def close(self) -> None:
        """Stop the threads and wait for those that can be woken; a thread inside the user's iterable is left to it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.flow.close()
        self.openings.close()
        self._leases.close()
        pull, plan, read = self._threads
        waited_for = (plan, read) if self.flow.in_user_code else (pull, plan, read)
        # a garbage collection may close a stream from within one of its own threads, which cannot wait for itself
        if self._started and threading.current_thread() not in self._threads:
            for thread in waited_for:
                thread.join(_JOIN_S)
                if thread.is_alive():
                    _LOG.warning("%s is still inside one read %.0f s after it was closed: left", thread.name, _JOIN_S)
        self.engine.close()
        self._reader.skips.say_total()


def _keys(work: Work, seed: int, rank: int) -> IntArray:
    """The samples' own keys, else f(seed, rank, number)."""
    keys = sample_keys(seed, rank, np.array([item.number for item in work.items], dtype=np.int64))
    for row, item in enumerate(work.items):
        if item.sample is not None and item.sample.key is not None:
            keys[row] = np.uint64(item.sample.key & (2**64 - 1)).view(np.int64)
    return keys


_LIVE: weakref.WeakSet[Stages] = weakref.WeakSet()


def _close_at_exit(stages: Stages) -> None:
    if not _LIVE:
        # registered as late as possible: exit handlers run in reverse order, so what the threads use is still there
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _LIVE.add(stages)


def _close_all() -> None:
    for stages in list(_LIVE):
        stages.close()
