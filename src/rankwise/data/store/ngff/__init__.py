"""OME-Zarr (NGFF) images, labels and plates, versions 0.1 to 0.5."""

from __future__ import annotations

from rankwise.data.store.ngff.attributes import Axis
from rankwise.data.store.ngff.discovery import ImageRef, iter_images
from rankwise.data.store.ngff.images import Image, ImageLevel, open_image
from rankwise.data.store.ngff.plates import Acquisition, Field, Plate, Well, open_plate

__all__ = [
    "Acquisition",
    "Axis",
    "Field",
    "Image",
    "ImageLevel",
    "ImageRef",
    "Plate",
    "Well",
    "iter_images",
    "open_image",
    "open_plate",
]
