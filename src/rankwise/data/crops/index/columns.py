"""Numbers of images that their crops carry along."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray
from rankwise.data.crops.index.image import CropImage
from rankwise.errors import ConfigError

__all__ = ["ImageColumns"]


class ImageColumns:
    """One array per label, with a row for each image.

    Args:
        images: the images.
        labels: name -> function of an image, returning numbers of the same shape for all.

    Attributes:
        specs: the labels as fields.
        digest: hash of the values.

    Raises:
        ConfigError: a function returns something else than numbers, or different shapes.
    """

    def __init__(self, images: Sequence[CropImage], labels: Mapping[str, Callable[[CropImage], Any]]) -> None:
        self._values = {name: _column(name, images, label) for name, label in labels.items()}
        self.specs = {
            name: FieldSpec(shape=values.shape[1:], dtype=values.dtype) for name, values in self._values.items()
        }
        digest = hashlib.sha256()
        for name, values in self._values.items():
            digest.update(repr((name, values.dtype.str, values.shape)).encode() + values.tobytes())
        self.digest = digest.hexdigest()[:16]

    def rows(self, name: str, images: IntArray) -> NDArray:
        """Return the values of a label for images int64[B]."""
        rows: NDArray = self._values[name][images]
        return rows


def _column(name: str, images: Sequence[CropImage], label: Callable[[CropImage], Any]) -> NDArray:
    rows = [np.asarray(label(image)) for image in images]
    for image, row in zip(images, rows, strict=True):
        if row.dtype.kind not in "?biuf" or row.shape != rows[0].shape:
            raise ConfigError(
                f"labels={name!r} returns numbers of one shape for every image; for {image.name!r} it returned "
                f"{row.dtype}{list(row.shape)}, for {images[0].name!r} {rows[0].dtype}{list(rows[0].shape)}"
            )
    return np.stack(rows)
