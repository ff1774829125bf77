"""Bytes to arrays: Zarr arrays by ranges of axis 0, checked, decoded, cached and counted. Needs no torch."""

from __future__ import annotations

from rankwise.data.store.array import StoredArray
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.grid import Grid
from rankwise.data.store.opening import load_zarr, open_array, open_arrays, wrap_array
from rankwise.data.store.presence import ByteRange, Found
from rankwise.data.store.stats import Counters, StoreStats

__all__ = [
    "DEFAULT_CACHE_BYTES",
    "ByteRange",
    "ChunkCache",
    "Counters",
    "Found",
    "Grid",
    "StoreStats",
    "StoredArray",
    "load_zarr",
    "open_array",
    "open_arrays",
    "wrap_array",
]
