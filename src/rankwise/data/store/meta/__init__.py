"""Metadata of Zarr arrays and groups, parsed once; `ngff` and catalogues use it."""

from __future__ import annotations

from rankwise.data.store.meta.tree import STORES, Nodes, StoredNodes, list_arrays, read_meta
from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec, KeyEncoding

__all__ = [
    "STORES",
    "ArrayMeta",
    "ChunkCodec",
    "KeyEncoding",
    "Nodes",
    "StoredNodes",
    "list_arrays",
    "read_meta",
]
