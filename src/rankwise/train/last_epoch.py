"""Loaders read a little of the next epoch at the end of this one, unless they know that there is none."""

from __future__ import annotations

from rankwise.data.contract import BatchLoader

__all__ = ["expect_last_epoch"]


def expect_last_epoch(loader: BatchLoader) -> None:
    """Tell a loader that its next iteration is the last one, if it wants to know."""
    tell = getattr(loader, "expect_last_epoch", None)
    if tell is not None:
        tell()
