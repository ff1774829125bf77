"""Bytes to arrays: boxes and rows of Zarr arrays, checked, decoded, cached and counted. Needs no torch."""

from __future__ import annotations

from rankwise.data.store.array import StoredArray
from rankwise.data.store.boxes import BoxError, BoxReport, BoxRequest, Pad
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.grid import Grid
from rankwise.data.store.meta import (
    ArrayMeta,
    Catalogue,
    ChunkCodec,
    build_catalogue,
    iter_images,
    list_arrays,
    open_image,
    open_plate,
    read_meta,
)
from rankwise.data.store.opening import load_zarr, open_array, open_arrays, wrap_array
from rankwise.data.store.plan import BoxPlan
from rankwise.data.store.presence import ByteRange, Found
from rankwise.data.store.reader import BoxReader, Keep
from rankwise.data.store.reading import ReaderStats
from rankwise.data.store.stats import Counters, StoreStats

__all__ = [
    "DEFAULT_CACHE_BYTES",
    "ArrayMeta",
    "BoxError",
    "BoxPlan",
    "BoxReader",
    "BoxReport",
    "BoxRequest",
    "ByteRange",
    "Catalogue",
    "ChunkCache",
    "ChunkCodec",
    "Counters",
    "Found",
    "Grid",
    "Keep",
    "Pad",
    "ReaderStats",
    "StoreStats",
    "StoredArray",
    "build_catalogue",
    "iter_images",
    "list_arrays",
    "load_zarr",
    "open_array",
    "open_arrays",
    "open_image",
    "open_plate",
    "read_meta",
    "wrap_array",
]
