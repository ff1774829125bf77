"""What loaders that read ahead want to know of a loop: that an epoch begins soon, and that none follows."""

from __future__ import annotations

from rankwise.data.contract import BatchLoader

__all__ = ["expect_last_epoch", "start_prefetch"]


def start_prefetch(loader: BatchLoader) -> None:
    """Tell a loader that it will be iterated from where it stands, soon, if it wants to know."""
    tell = getattr(loader, "start_prefetch", None)
    if tell is not None:
        tell()


def expect_last_epoch(loader: BatchLoader) -> None:
    """Tell a loader that its next iteration is the last one, if it wants to know."""
    tell = getattr(loader, "expect_last_epoch", None)
    if tell is not None:
        tell()
