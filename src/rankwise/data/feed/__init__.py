"""A batch's last metres: background reading, reusable buffers, the device. Knows sources only through the contract."""

from __future__ import annotations

from rankwise.data.feed.batch import FeedBatch, ShareView
from rankwise.data.feed.buffer import HostBuffer
from rankwise.data.feed.cursor import Cursor, CursorLoader, FullLength, check_fits
from rankwise.data.feed.loader import FeedLoader
from rankwise.data.feed.options import FeedOptions, LoaderStats
from rankwise.data.feed.rank_loader import RankLoader
from rankwise.data.feed.reader import OnBadSample
from rankwise.data.feed.transform import BatchTransform, Transform, other_way

__all__ = [
    "BatchTransform",
    "Cursor",
    "CursorLoader",
    "FeedBatch",
    "FeedLoader",
    "FeedOptions",
    "FullLength",
    "HostBuffer",
    "LoaderStats",
    "OnBadSample",
    "RankLoader",
    "ShareView",
    "Transform",
    "check_fits",
    "other_way",
]
