"""A small real MRI as sharded OME-Zarr 0.5: the head among nibabel's test data, and a label derived from it.

Origin: `nibabel/tests/data/example4d.nii.gz`, two frames of an echo-planar scan of one head, 128 x 96 x 24 voxels of
2 x 2 x 2.2 mm. nibabel is under the MIT licence; its list of files under other licences does not name this one.

The label is not drawn by a person. It is derived: Otsu's threshold over the mean of both frames, of that the largest
connected part, its gaps closed and its holes filled slice by slice. It says "inside the head", nothing more.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from scipy import ndimage

Array = npt.NDArray[Any]
AXES = [{"name": "t", "type": "time", "unit": "second"}] + [
    {"name": name, "type": "space", "unit": "millimeter"} for name in "zyx"
]
SPACING = np.array([2.0, 2.2, 2.0, 2.0])  # seconds between frames, millimetres between voxels
NUM_LEVELS = 3
# The head's right half is for training, its left half is held out: no voxel is in both.
HALVES = {"train": slice(None, 64), "val": slice(64, None)}


def write_store(path: Path) -> None:
    """Write the images ``train`` and ``val``, int16 [2, 24, 96, 64] (t, z, y, x), each with a label image ``head``."""
    frames = _read_frames()
    head = np.broadcast_to(_inside_head(frames.mean(axis=0)), frames.shape).astype(np.uint8)
    part = frames[..., HALVES["train"]]
    facts = {"mean": float(part.mean()), "std": float(part.std())}  # of the training half alone
    for name, half in HALVES.items():
        group = zarr.open_group(path / name, mode="w", zarr_format=3)
        _write_image(group, name, frames[..., half], facts)
        labels = group.create_group("labels", attributes={"ome": {"version": "0.5", "labels": ["head"]}})
        _write_image(labels.create_group("head"), "head", head[..., half], {}, label=True)


def _read_frames() -> Array:
    """Return the scan, int16 [t, z, y, x]."""
    import nibabel

    with as_file(files("nibabel") / "tests" / "data" / "example4d.nii.gz") as file:
        return np.asarray(nibabel.load(file).dataobj, dtype=np.int16).transpose(3, 2, 1, 0)


def _inside_head(volume: Array) -> Array:
    """Return which voxels of [z, y, x] lie inside the head."""
    parts, _ = ndimage.label(volume > _otsu(volume))
    largest = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
    closed = (ndimage.binary_closing(np.pad(image, 4), iterations=3) for image in largest)
    return np.stack([ndimage.binary_fill_holes(image)[4:-4, 4:-4] for image in closed])


def _otsu(values: Array) -> float:
    """Return the threshold that parts the values into two classes as far from each other as can be.

    N. Otsu, "A threshold selection method from gray-level histograms", IEEE Trans. SMC 9(1), 1979.
    """
    counts, edges = np.histogram(values, bins=256)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1]
    above, sums = counts.sum() - below, np.cumsum(counts * centres)
    between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    return float(edges[1 + np.argmax(between)])


def _write_image(group: zarr.Group, name: str, values: Array, facts: dict[str, float], *, label: bool = False) -> None:
    """Write the levels of an image, each half as fine in space as the one before, and their description."""
    datasets = []
    for level in range(NUM_LEVELS):
        array = group.create_array(
            str(level),
            shape=values.shape,
            dtype=values.dtype,
            chunks=(1, 8, 16, 16),
            shards=(1, 24, 48, 64),
            dimension_names=[axis["name"] for axis in AXES],
        )
        array[...] = values
        array.attrs.update(facts)
        datasets.append({"path": str(level), "coordinateTransformations": _place(level)})
        values = _halved_label(values) if label else _halved(values)
    ome: dict[str, Any] = {"version": "0.5", "multiscales": [{"name": name, "axes": AXES, "datasets": datasets}]}
    if label:
        ome["image-label"] = {"source": {"image": "../../"}}
    group.attrs["ome"] = ome


def _place(level: int) -> list[dict[str, Any]]:
    """Where a level lies: an element of a coarse level has its centre between those that it stands for."""
    factor = np.array([1, *[2**level] * 3])
    shift = (factor - 1) / 2 * SPACING
    return [
        {"type": "scale", "scale": (factor * SPACING).tolist()},
        {"type": "translation", "translation": shift.tolist()},
    ]


def _blocks(values: Array) -> Array:
    frames, *sizes = values.shape
    return values.reshape(frames, *[part for size in sizes for part in (size // 2, 2)])


def _halved(values: Array) -> Array:
    return _blocks(values).mean(axis=(2, 4, 6)).round().astype(values.dtype)


def _halved_label(values: Array) -> Array:
    return _blocks(values).max(axis=(2, 4, 6))
