"""What torch's `DataLoader` makes of steps where it was given a batch size of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankwise.data.feed.batch import FeedBatch
from rankwise.errors import ConfigError

__all__ = ["teach_collating"]


def teach_collating() -> None:
    """Tell torch's default function that a single step, its batch size where none is given, stays as it is."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map[FeedBatch] = _only


def _only(batches: Sequence[Any], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  (torch passes it)
    if len(batches) > 1:
        raise ConfigError(
            f"steps of a loader are batches already, and {len(batches)} of them were to be put together: take "
            "DataLoader(loader, batch_size=None); Order(..., batch_size=...) says how many samples a step has"
        )
    return batches[0]
