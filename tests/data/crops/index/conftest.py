"""Small volumes with labels, on disk and in memory."""

from dataclasses import dataclass

import numpy as np
import pytest
import zarr

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
