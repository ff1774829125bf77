"""`LoaderStats`: what a loader has handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.data.feed.reader import ReadStep

__all__ = ["LoaderStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """What a loader has handed out since it was made.

    Attributes:
        steps: steps.
        samples: samples of this rank, padding included.
        skipped: damaged samples of this rank that were left out.
        chunks_decoded: chunks that were decoded for them (what a cache held is not counted).
        slow_chunks: of these, chunks that only zarr-python decodes.
        fill_chunks: chunks that are missing from the store and stand for the fill value.
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
        """Return these and a step that is handed out.

        Args:
            step: what was read.
            waited_s: seconds that the consumer waited for it.
        """
        samples, skipped, fast, slow, fill = self.samples, self.skipped, 0, self.slow_chunks, self.fill_chunks
        for batch in step.batches:  # at each step of every loader: one loop, and no `replace`
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
