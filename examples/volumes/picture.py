"""A picture of a crop, its label and its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import rankwise
from rankwise.data.crops import CropIndex, IndexPipeline

ZOOM = 8


def write_picture(folder: Path, tiles: CropIndex, model: torch.nn.Module) -> Path:
    """Write ``prediction.png``: a slice of the tile in which head and background are most even, on one rank.

    From left to right: the image, the label, what the network says.
    """
    order = rankwise.Order(tiles, batch_size=len(tiles), kind="sequential")
    with IndexPipeline(tiles, order=order, world=rankwise.World.single()) as pipeline:
        (batch,) = [batch for batches in pipeline for batch in batches]
    images, labels = batch["image"], batch["head"]
    chosen = (labels.float().mean(dim=(1, 2, 3)) - 0.5).abs().argmin()
    weight = next(model.parameters())
    with torch.no_grad():
        found = torch.sigmoid(model(images[chosen, None].to(weight))[0])
    middle = images.shape[1] // 2
    shown = [_grey(values[middle].cpu()) for values in (_stretched(images[chosen]), labels[chosen], found)]
    path = folder / "prediction.png"
    Image.fromarray(np.concatenate(shown, axis=1)).save(path)
    return path


def _stretched(values: torch.Tensor) -> torch.Tensor:
    low, high = values.min(), values.max()
    return (values - low) / (high - low)


def _grey(values: torch.Tensor) -> Any:
    """Return values from 0 to 1 as grey levels, each voxel as a square, with a frame."""
    grey = (255 * values.double().clamp(0, 1)).round().to(torch.uint8).numpy()
    return np.pad(np.kron(grey, np.ones((ZOOM, ZOOM), np.uint8)), 2, constant_values=128)
