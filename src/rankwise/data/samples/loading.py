"""`SampleLoader`: a source and an order to batches, on this rank and its device."""

from __future__ import annotations

from rankwise.data.feed import RankLoader

__all__ = ["SampleLoader"]


class SampleLoader(RankLoader):
    """The loader of an `ArraySource`, or any other source of samples; its arguments are those of `RankLoader`."""
