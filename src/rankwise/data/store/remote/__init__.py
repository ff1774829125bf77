"""Object stores: byte ranges of objects behind URLs, with merged, limited, retried and counted requests."""

from __future__ import annotations

from rankwise.data.store.remote.client import Listing
from rankwise.data.store.remote.files import RemoteFiles
from rankwise.data.store.remote.options import RemoteOptions, RemoteStats, locate, understands_url
from rankwise.data.store.remote.ranges import PendingReads, RemoteRange
from rankwise.data.store.remote.requests import ObjectChangedError, Part, TransferError
from rankwise.data.store.remote.stores import memory_store

__all__ = [
    "Listing",
    "ObjectChangedError",
    "Part",
    "PendingReads",
    "RemoteFiles",
    "RemoteOptions",
    "RemoteRange",
    "RemoteStats",
    "TransferError",
    "locate",
    "memory_store",
    "understands_url",
]
