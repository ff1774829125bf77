"""`LoaderStats`: what a loader has handed out."""

from __future__ import annotations

from dataclasses import dataclass

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
