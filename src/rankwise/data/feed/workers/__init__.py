"""Loaders inside torch's `DataLoader`: where passes of its workers begin, and how their batches are sent."""

from __future__ import annotations

from rankwise.data.feed.workers.forkserver import InitWorker, check_importable, sigterm_blocked, start_server
from rankwise.data.feed.workers.iterable import (
    SentBatch,
    check_sendable,
    host_device,
    iterable_class,
    raising,
    rebuild,
    sent_fields,
    warn_in_memory,
)
from rankwise.data.feed.workers.starts import PassStarts, order_code

__all__ = [
    "InitWorker",
    "PassStarts",
    "SentBatch",
    "check_importable",
    "check_sendable",
    "host_device",
    "iterable_class",
    "order_code",
    "raising",
    "rebuild",
    "sent_fields",
    "sigterm_blocked",
    "start_server",
    "warn_in_memory",
]
