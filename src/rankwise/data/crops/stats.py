"""Statistics of a stream of crops: times of its stages, and amounts processed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from rankwise.data.crops.stream.resolver import OpeningStats


@dataclass(frozen=True, slots=True)
class Metric:
    """One stage.

    Attributes:
        name: its name.
        ms: total milliseconds spent in it.
        best_ms: the fastest time; 0 before the first.
        input_bytes: bytes of input, if known.
        output_bytes: bytes of output.
        count: number of times.
    """

    name: str
    ms: float = 0.0
    best_ms: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0
    count: int = 0

    def and_one_more(self, ms: float, input_bytes: int, output_bytes: int) -> Metric:
        """Return the metric with one more time."""
        return Metric(
            self.name,
            self.ms + ms,
            min(self.best_ms, ms) if self.count else ms,
            self.input_bytes + input_bytes,
            self.output_bytes + output_bytes,
            self.count + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot. Reading, decoding and casting are one stage here (`decode`); those of a GPU decoder are 0.

    Attributes:
        pull: in the pushed iterables.
        plan: from samples to byte ranges, including the wait for arrays to be opened.
        io, post_decode, decode_gap: always 0: reads and casts happen inside `decode`.
        input_transfer: starting the copy to the device.
        decode: read, decode, crop, cast, scale; in: encoded bytes, out: bytes of the batch.
        assemble: `transform=`.
        bind_wait: the reader waits for a free batch buffer.
        pop_wait: the consumer waits for a batch.
        batches_emitted: batches handed out.
        waves_emitted: the same number: a wave is a batch here.
        samples_emitted: samples in them.
        samples_skipped: damaged samples that were skipped.
        samples_failed: samples whose error was raised.
        chunks_planned: chunks that batches need, each counted once per batch and field.
        chunks_to_load: those of them that were not in the cache.
        chunks_dispatched: chunks that were decoded.
        fast_chunks: those of them decoded by our own decoders.
        slow_chunks: those of them decoded by zarr-python.
        cached_chunks: chunks that were already decoded.
        fill_chunks: chunks that are not in the store, read as the fill value.
        reads_issued: the same as `chunks_dispatched`; neighbouring ones may have been read in one go.
        retries: reads that were repeated after storage errors.
        worker_steps, chunk_layout_hits, chunk_layout_misses: always 0.
        read_bytes: encoded bytes read.
        decoded_bytes: bytes decoded.
        wanted_bytes: bytes of the crops themselves, as stored.
        gpu_bytes_committed: most bytes of batches on the device.
        host_bytes_committed: most bytes of the pipeline on the host.
        array_meta: arrays opened, and delays injected.
        shard_index_hits: look-ups of a file's shard index (or size) answered from memory.
        shard_index_misses: look-ups that had to be read.
        metadata_latency_stat_ops, metadata_latency_submit_ops: always 0: delays apply to the opening of arrays.
        fill_batches: batches without any voxel that was ever written.
    """

    pull: Metric = Metric("pull")
    plan: Metric = Metric("plan")
    io: Metric = Metric("io")
    input_transfer: Metric = Metric("input_transfer")
    decode: Metric = Metric("decode")
    post_decode: Metric = Metric("post_decode")
    decode_gap: Metric = Metric("decode_gap")
    assemble: Metric = Metric("assemble")
    bind_wait: Metric = Metric("bind_wait")
    pop_wait: Metric = Metric("pop_wait")
    batches_emitted: int = 0
    waves_emitted: int = 0
    samples_emitted: int = 0
    samples_skipped: int = 0
    samples_failed: int = 0
    chunks_planned: int = 0
    chunks_to_load: int = 0
    chunks_dispatched: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    cached_chunks: int = 0
    fill_chunks: int = 0
    reads_issued: int = 0
    retries: int = 0
    worker_steps: int = 0
    read_bytes: int = 0
    decoded_bytes: int = 0
    wanted_bytes: int = 0
    gpu_bytes_committed: int = 0
    host_bytes_committed: int = 0
    array_meta: OpeningStats = field(default_factory=OpeningStats)
    shard_index_hits: int = 0
    shard_index_misses: int = 0
    chunk_layout_hits: int = 0
    chunk_layout_misses: int = 0
    metadata_latency_stat_ops: int = 0
    metadata_latency_submit_ops: int = 0
    fill_batches: int = 0

    @property
    def array_meta_hits(self) -> int:
        """Arrays that were already open, or being opened."""
        return self.array_meta.hits

    @property
    def array_meta_misses(self) -> int:
        """Arrays that had to be opened."""
        return self.array_meta.misses

    @property
    def metadata_latency_ops(self) -> int:
        """Delays that `Config.metadata_latency` injected."""
        return self.array_meta.delays

    @property
    def metadata_latency_active(self) -> int:
        """Arrays being opened now, with their delay; 0 without delays."""
        return self.array_meta.active if self.array_meta.delays else 0

    @property
    def metadata_latency_max_active(self) -> int:
        """Largest number of such arrays at any time."""
        return self.array_meta.max_active if self.array_meta.delays else 0

    @property
    def metadata_latency_total_sleep_ns(self) -> int:
        """Sum of all delays in nanoseconds."""
        return round(self.array_meta.total_delay_s * 1e9)

    @property
    def metadata_latency_max_sleep_ns(self) -> int:
        """The longest delay."""
        return round(self.array_meta.max_delay_s * 1e9)

    @property
    def metadata_backend_read_jobs(self) -> int:
        """Arrays that were opened, or are being opened."""
        return self.array_meta.misses

    @property
    def metadata_backend_read_active(self) -> int:
        """Arrays being opened now."""
        return self.array_meta.active

    @property
    def metadata_backend_read_max_active(self) -> int:
        """Largest number of such arrays at any time."""
        return self.array_meta.max_active

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All stages, in the order in which a sample passes them."""
        found = (getattr(self, each.name) for each in fields(self))
        return tuple(each for each in found if isinstance(each, Metric))

    @property
    def read_amplification(self) -> float:
        """Encoded bytes read per byte of crop, as stored; 0 before the first batch."""
        return self.read_bytes / self.wanted_bytes if self.wanted_bytes else 0.0

    @property
    def decode_waste(self) -> float:
        """Bytes decoded per byte of crop: 1 is ideal; crops across chunk edges decode more than they use."""
        return self.decoded_bytes / self.wanted_bytes if self.wanted_bytes else 0.0

    def __str__(self) -> str:
        table = [f"{'stage':<16}{'ms':>12}{'best ms':>12}{'count':>10}"]
        table += [f"{m.name:<16}{m.ms:>12.1f}{m.best_ms:>12.3f}{m.count:>10}" for m in self.metrics if m.count]
        table.append(
            f"{self.batches_emitted} batches, {self.samples_emitted} samples; chunks: {self.chunks_planned} planned, "
            f"{self.fast_chunks} fast, {self.slow_chunks} slow, {self.cached_chunks} cached, {self.fill_chunks} fill; "
            f"read {self.read_amplification:.2f} and decoded {self.decode_waste:.2f} bytes per byte of crop"
        )
        return "\n".join(table)


class Meters:
    """A `Stats` that accumulates; thread-safe."""

    def __init__(self, **at_first: int) -> None:
        # One lock for all numbers: a snapshot never has a batch without its samples, which one `add` counts.
        self._lock = threading.Lock()
        # updated many times for each batch and read rarely: a `Stats` is made on demand
        self._now: dict[str, Any] = _fields_of(Stats(**at_first))  # type: ignore[arg-type]

    @property
    def stats(self) -> Stats:
        """Counts so far."""
        with self._lock:
            return Stats(**self._now)

    @contextmanager
    def time(self, stage: str, *, input_bytes: int = 0, output_bytes: int = 0) -> Iterator[None]:
        """Time a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            ms = (time.perf_counter() - began) * 1e3
            # Stages of several threads run concurrently, only the addition is locked. A stage that began before a
            # `reset` counts after it.
            with self._lock:
                self._now[stage] = self._now[stage].and_one_more(ms, input_bytes, output_bytes)

    def add(self, **amounts: int) -> None:
        """Add to counts."""
        with self._lock:
            for name, amount in amounts.items():
                self._now[name] += amount

    def reset(self) -> None:
        """Set the stages and the counts to 0; committed memory stays."""
        with self._lock:
            kept = {name: self._now[name] for name in ("gpu_bytes_committed", "host_bytes_committed")}
            self._now = _fields_of(Stats(**kept))


def _fields_of(stats: Stats) -> dict[str, Any]:
    return {each.name: getattr(stats, each.name) for each in fields(stats)}
