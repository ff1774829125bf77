"""Object stores: byte ranges of objects behind URLs, joined, bounded, tried again, counted."""

from __future__ import annotations

from rankwise.data.store.remote.asking import Part
from rankwise.data.store.remote.files import RemoteFiles
from rankwise.data.store.remote.listing import Listing
from rankwise.data.store.remote.options import RemoteOptions
from rankwise.data.store.remote.pending import PendingReads
from rankwise.data.store.remote.ranges import RemoteRange
from rankwise.data.store.remote.stats import RemoteStats
from rankwise.data.store.remote.stores import memory_store
from rankwise.data.store.remote.trouble import ObjectChangedError, TransferError
from rankwise.data.store.remote.urls import locate, understands_url

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
