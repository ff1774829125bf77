"""What the metadata of Zarr arrays, groups and images say, parsed once."""

from __future__ import annotations

from rankwise.data.store.meta.catalogue import Catalogue, build_catalogue
from rankwise.data.store.meta.ngff import (
    Acquisition,
    Axis,
    Field,
    Image,
    ImageLevel,
    ImageRef,
    Plate,
    Well,
    iter_images,
    open_image,
    open_plate,
)
from rankwise.data.store.meta.reader import read_meta
from rankwise.data.store.meta.tree import STORES, Nodes, StoredNodes, list_arrays
from rankwise.data.store.meta.values import ArrayMeta, ChunkCodec, KeyEncoding

__all__ = [
    "STORES",
    "Acquisition",
    "ArrayMeta",
    "Axis",
    "Catalogue",
    "ChunkCodec",
    "Field",
    "Image",
    "ImageLevel",
    "ImageRef",
    "KeyEncoding",
    "Nodes",
    "Plate",
    "StoredNodes",
    "Well",
    "build_catalogue",
    "iter_images",
    "list_arrays",
    "open_image",
    "open_plate",
    "read_meta",
]
