"""How many files the crops of an index lie in, at most."""

from __future__ import annotations

import numpy as np

from rankwise.data.crops.index.crop_index import CropIndex
from rankwise.data.crops.index.layout import FieldLayout

__all__ = ["most_files"]


def most_files(index: CropIndex, *, num_crops: int) -> int:
    """Return the most files that so many crops of an epoch may touch, over all fields and stages."""
    return max(
        sum(_most_of_field(layout, num_crops) for layout in made.layouts.values()) for made in index.stages.known()
    )


def _most_of_field(layout: FieldLayout, num_crops: int) -> int:
    files = np.array([array.files for array in layout.arrays], dtype=np.int64)
    there = -(-np.array([array.shape for array in layout.arrays], dtype=np.int64) // files)
    per_box = np.minimum((np.array(layout.shape) - 2) // files + 2, there)
    per_crop = float(np.prod(per_box, axis=1, dtype=np.float64).max()) * layout.channels.shape[1]
    return int(min(per_crop * num_crops, float(np.prod(there, axis=1, dtype=np.float64).sum())))
