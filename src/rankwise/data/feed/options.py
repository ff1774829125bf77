"""Options, statistics and warnings that the loaders of a rank have in common."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from rankwise.data.contract import Order, Source

if TYPE_CHECKING:
    from rankwise.data.feed.reader import OnBadSample, ReadStep
    from rankwise.data.feed.transform import BatchTransform, Transform

__all__ = ["FeedOptions", "LoaderStats", "warn_small_cache"]


class FeedOptions(TypedDict, total=False):
    """Arguments that are passed on to `FeedLoader`, which documents them."""

    transform: Transform | None
    batch_transform: BatchTransform | None
    fields: Sequence[str] | None
    on_bad_sample: OnBadSample
    across_epochs: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Totals of what a loader has handed out since it was made.

    Attributes:
        steps: steps.
        samples: samples of this rank, padding included.
        skipped: damaged samples of this rank that were left out.
        chunks_decoded: chunks decoded for them; chunks found in a cache do not count.
        slow_chunks: those of them that only zarr-python can decode.
        fill_chunks: chunks that are missing from the store, read as the fill value.
        read_s: seconds the reader spent on them.
        wait_s: seconds the consumer waited for them.
    """

    steps: int = 0
    samples: int = 0
    skipped: int = 0
    chunks_decoded: int = 0
    slow_chunks: int = 0
    fill_chunks: int = 0
    read_s: float = 0.0
    wait_s: float = 0.0

    def after(self, step: ReadStep, *, waited_s: float) -> LoaderStats:
        """Return the totals with one more step.

        Args:
            step: what was read.
            waited_s: seconds the consumer waited for it.
        """
        samples, skipped, fast, slow, fill = self.samples, self.skipped, 0, self.slow_chunks, self.fill_chunks
        for batch in step.batches:  # runs at each step of every loader: one loop, and no `replace`
            samples += batch.share.num_samples
            skipped += batch.num_lost
            fast += batch.report.fast_chunks
            slow += batch.report.slow_chunks
            fill += batch.report.fill_chunks
        return LoaderStats(
            steps=self.steps + 1,
            samples=samples,
            skipped=skipped,
            chunks_decoded=self.chunks_decoded + fast + slow - self.slow_chunks,
            slow_chunks=slow,
            fill_chunks=fill,
            read_s=self.read_s + step.read_s,
            wait_s=self.wait_s + waited_s,
        )


def warn_small_cache(source: Source, order: Order, *, rank: int, world_size: int) -> None:
    """Warn on the main rank if chunks will be decoded more than about once per epoch, and name the size needed.

    A rank reads its part of the lanes; each lane needs a window of chunks at a time. There is no warning if source or
    order do not give these numbers, or if the cache is off.

    Args:
        source: the samples.
        order: says how many chunks it draws from at a time.
        rank: this rank.
        world_size: number of ranks.
    """
    grid, locality = order.grid, source.locality
    if grid is None or not locality.cache_bytes or rank != 0 or order.kind == "sequential":
        return
    chunks = -(-grid.lanes // world_size) * grid.window
    samples = chunks * max(locality.chunk_samples, grid.chunk_samples)  # the order may be made for other fields
    needed = min(locality.decoded_bytes(samples) or 0, locality.decoded_bytes(source.num_samples) or 0)
    if needed > locality.cache_bytes:
        warnings.warn(
            f"the order draws from {chunks} chunks at a time on each rank ({_mib(needed)} decoded), the cache keeps "
            f"{_mib(locality.cache_bytes)}: chunks will be decoded several times per epoch. Set cache={needed} "
            "or more on the source, use fewer lanes or a smaller window, or store smaller chunks",
            stacklevel=3,
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
