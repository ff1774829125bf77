"""Object stores: byte ranges of objects behind URLs, with merged, limited, retried and counted requests."""

from __future__ import annotations

from rankwise.data.store.remote.client import Listing
from rankwise.data.store.remote.files import PendingReads, RemoteFiles, RemoteRange
from rankwise.data.store.remote.options import RemoteOptions, RemoteStats, locate, memory_store, understands_url
from rankwise.data.store.remote.requests import ObjectChangedError, Part, TransferError

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
