"""Small volumes with labels, on disk and in memory."""

from dataclasses import dataclass

import numpy as np
import pytest
import zarr

from rankwise.data.crops import plain_level
from rankwise.data.store import read_meta

SIZES = ((20, 33, 47), (16, 16, 16), (31, 64, 40))


@dataclass(repr=False)
class Volumes:
    """Volumes by number, their arrays in memory, and the mappings that name them."""

    images: list
    values: dict

    def value(self, image, part="image"):
        return self.values[image.name][part]


def write(path, values, chunks, shards):
    zarr.create_array(path, data=values, chunks=chunks, shards=shards)


@pytest.fixture(scope="session")
def volumes(tmp_path_factory):
    """Three volumes of odd sizes; labels lie in one corner of each."""
    folder = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(0)
    images, values = [], {}
    for number, size in enumerate(SIZES):
        image = rng.integers(1, 60_000, size).astype("u2")
        label = np.zeros(size, "u1")
        label[5:9, 4:9, 3:8] = number + 1
        for part, array in (("image", image), ("label", label)):
            write(folder / f"{part}{number}.zarr", array, (4, 8, 8), (8, 16, 16))
        images.append({"image": folder / f"image{number}.zarr", "label": folder / f"label{number}.zarr"})
        values[f"image{number}.zarr"] = {"image": image, "label": label}
    return Volumes(images, values)


@pytest.fixture(scope="session")
def strided(tmp_path_factory):
    """A volume with 200 objects of two elements' width and a pyramid of labels made by striding."""
    folder = tmp_path_factory.mktemp("strided")
    rng = np.random.default_rng(3)
    label = np.zeros((45, 130, 130), "u2")
    cells = rng.choice(9 * 26 * 26, 200, replace=False)
    corners = np.stack(np.unravel_index(cells, (9, 26, 26)), axis=1) * 5 + rng.integers(0, 4, (200, 3))
    for number, (z, y, x) in enumerate(corners.tolist()):
        label[z : z + 2, y : y + 2, x : x + 2] = number + 1
    levels = []
    for step in (1, 2, 4, 8):
        values = label[::step, ::step, ::step]
        chunks = tuple(min(size, 10) for size in values.shape)
        zarr.create_array(folder / f"l{step}", data=values, chunks=chunks)
        levels.append(plain_level(read_meta(folder / f"l{step}"), spacing=(float(step),) * 3))
    zarr.create_array(folder / "image", data=np.ones_like(label), chunks=(15, 26, 26))
    return {"image": folder / "image", "label": levels}, label
