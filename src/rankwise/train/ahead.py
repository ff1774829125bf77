"""What is ahead: loaders are told that an epoch begins soon or that none follows, and steps that are left counted."""

from __future__ import annotations

import sys
from typing import Any

from rankwise.data.contract import BatchLoader

__all__ = ["expect_last_epoch", "start_prefetch", "steps_left"]


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


def steps_left(train: BatchLoader, epochs: int) -> int | None:
    """Return the optimizer steps that the run still takes, for the progress line; None if the loader does not tell."""
    order: Any = getattr(train, "order", None)
    state, now = train.state_dict(), len(train)
    epoch = int(str(state["epoch"]))
    startable = hasattr(order, "start")
    if now == sys.maxsize:  # a stream that does not know its length
        return None
    if not startable and state["position"]:
        return None
    whole = int(order.num_steps(order.start(epoch))) if startable else now
    return now + whole * (epochs - epoch - 1) if epoch < epochs else 0
