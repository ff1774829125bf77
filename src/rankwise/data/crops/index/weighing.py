"""How likely each image is to be drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rankwise.data.contract import FloatArray
from rankwise.data.crops.index.image import CropImage
from rankwise.data.crops.index.rules import Weights
from rankwise.errors import ConfigError

__all__ = ["image_bounds", "image_weights"]


def image_weights(images: Sequence[CropImage], weights: Weights | None) -> FloatArray | None:
    """Return the weights of images, float64[N]; None = by how many places for crops they have.

    Raises:
        ConfigError: a weight is missing, negative or not finite.
    """
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights != "equal":
            raise ConfigError(f'weights is "equal", numbers, or a function of an image; got {weights!r}')
        return np.ones(len(images))
    if isinstance(weights, Mapping):
        missing = [image.name for image in images if image.name not in weights]
        if missing:
            raise ConfigError(f"weights= has none for image {missing[0]!r} and {len(missing) - 1} others")
        found = [float(weights[image.name]) for image in images]
    elif callable(weights):
        found = [float(weights(image)) for image in images]
    else:
        found = [float(weight) for weight in weights]
    if len(found) != len(images):
        raise ConfigError(f"weights= has {len(found)} numbers for {len(images)} images")
    for image, weight in zip(images, found, strict=True):
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"the weight of image {image.name!r} is {weight}: weights are finite and at least 0")
    return np.array(found)


def image_bounds(weights: FloatArray | None, amounts: FloatArray, *, what: str) -> FloatArray:
    """Return cumulative weights, float64[N]: `weights` where there is any amount, or the amounts themselves.

    Raises:
        ConfigError: they are all zero; the message says `what`.
    """
    chosen = amounts if weights is None else np.where(amounts > 0, weights, 0.0)
    bounds: FloatArray = np.cumsum(chosen)
    if not bounds[-1] > 0:
        raise ConfigError(f"there is nothing to draw crops from: {what}")
    return bounds
