"""The last stage of loading: background reads, reusable buffers, device copies. Knows sources only by the contract."""

from __future__ import annotations

from rankwise.data.feed.batch import ShareView
from rankwise.data.feed.cursor import Cursor, CursorLoader, check_fits
from rankwise.data.feed.loader import FeedLoader
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.options import FeedOptions
from rankwise.data.feed.transform import BatchTransform, Transform, other_way

__all__ = [
    "BatchTransform",
    "Cursor",
    "CursorLoader",
    "FeedLoader",
    "FeedOptions",
    "HostBuffer",
    "ShareView",
    "Transform",
    "check_fits",
    "other_way",
]
