"""Reads boxes of Zarr arrays: checked, decoded, cached and counted. Does not need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._lazy import door
from rankwise.data.store.boxes import BoxError, BoxReport, BoxRequest, Pad, Runs, sum_reports
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.decode.tasks import Spread
from rankwise.data.store.execution.context import Keep
from rankwise.data.store.meta.tree import StoredNodes, list_arrays, read_meta
from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec
from rankwise.data.store.plan.planner import BoxPlan, describe_missing
from rankwise.data.store.reader import BoxReader
from rankwise.data.store.remote import understands_url
from rankwise.data.store.stats import ReaderStats
from rankwise.data.store.zarr_python import load_zarr, require_codecs

__all__ = [
    "DEFAULT_CACHE_BYTES",
    "ArrayMeta",
    "BoxError",
    "BoxPlan",
    "BoxReader",
    "BoxReport",
    "BoxRequest",
    "Catalogue",
    "ChunkCache",
    "ChunkCodec",
    "Keep",
    "Pad",
    "ReaderStats",
    "Runs",
    "Spread",
    "StoredNodes",
    "build_catalogue",
    "describe_missing",
    "iter_images",
    "list_arrays",
    "load_zarr",
    "open_image",
    "open_plate",
    "read_meta",
    "require_codecs",
    "sum_reports",
    "understands_url",
]

if TYPE_CHECKING:
    from rankwise.data.store.catalogue.lookup import Catalogue, build_catalogue
    from rankwise.data.store.ngff.discovery import iter_images, open_plate
    from rankwise.data.store.ngff.images import open_image
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "Catalogue": "rankwise.data.store.catalogue.lookup",
            "build_catalogue": "rankwise.data.store.catalogue.lookup",
            "iter_images": "rankwise.data.store.ngff.discovery",
            "open_image": "rankwise.data.store.ngff.images",
            "open_plate": "rankwise.data.store.ngff.discovery",
        },
    )
