"""What the metadata of Zarr arrays, groups and images say, parsed once."""

from __future__ import annotations

from rankwise.data.store.meta.reading import read_meta
from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec, KeyEncoding

__all__ = ["ArrayMeta", "ChunkCodec", "KeyEncoding", "read_meta"]
