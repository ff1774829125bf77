"""The 1,797 handwritten digits that scikit-learn ships, as a sharded Zarr v3 store.

Origin: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from sklearn.datasets import load_digits

NUM_VAL = 360


def write_store(path: Path) -> None:
    """Write ``train`` and ``val`` groups, each with ``image`` uint8 [n, 8, 8] (0 to 16) and ``label`` int64 [n]."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images, labels = digits.images[order].astype(np.uint8), digits.target[order].astype(np.int64)
    root = zarr.open_group(path, mode="w", zarr_format=3)
    for name, part in (("val", slice(0, NUM_VAL)), ("train", slice(NUM_VAL, None))):
        group = root.create_group(name)
        _write(group, "image", images[part])
        _write(group, "label", labels[part])


def _write(group: zarr.Group, name: str, values: np.ndarray[Any, Any]) -> None:
    """Chunks of 32 samples, 8 of them in a shard: small, so that even this data set has many of both."""
    tail = values.shape[1:]
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(32, *tail), shards=(256, *tail))
    array[...] = values
