"""Which axis of the reference an axis of another array is, and how elements of one become elements of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import FloatArray
from rankwise.data.crops.index.frame import Frame
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.data.crops.index.take import Take

__all__ = ["affine_map", "chosen_levels", "linked_axes"]


def linked_axes(level: Level, frame: Frame) -> tuple[int, ...]:
    """Return for each axis of an array the axis of the reference with its name, -1 where there is none.

    Where one of them has no names both count from the end.
    """
    reference = frame.levels[0]
    placed = {axis - reference.array.ndim: number for number, axis in enumerate(frame.where)}
    links = []
    for axis, name in enumerate(level.axes):
        behind = axis - level.array.ndim
        nameless = name == str(behind) or behind < -reference.array.ndim or reference.axes[behind] == str(behind)
        if name in frame.axes:
            links.append(frame.axes.index(name))
        else:
            links.append(placed.get(behind, -1) if nameless else -1)
    return tuple(links)


def affine_map(frame: Frame, levels: Sequence[Level], linked: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return ratio and shift, float64[N, E]: element x of the reference is element ``x * ratio + shift`` of the array.

    Both count from the corner of the first element.
    """
    spacing = np.array([level.spacing for level in levels], dtype=np.float64)
    corner = np.array([level.origin for level in levels], dtype=np.float64) - spacing / 2
    axes = np.array(linked, dtype=np.int64)
    ratio = np.where(axes >= 0, frame.spacing[:, axes] / spacing, 1.0)
    shift = np.where(axes >= 0, (frame.corner[:, axes] - corner) / spacing, 0.0)
    return ratio, shift


def chosen_levels(
    part: str, take: Take, images: Sequence[CropImage], frame: Frame, level: int | None
) -> tuple[Level, ...]:
    """Return the level that a field takes from each image: the one asked for, else that of the nearest spacing.

    Raises:
        ConfigError: an image has no such part or level.
    """
    chosen = take.level if take.level is not None else level
    if chosen is not None:
        return tuple(image.level(part, chosen) for image in images)
    return tuple(_nearest(image.levels(part), own) for image, own in zip(images, frame.levels, strict=True))


def _nearest(levels: tuple[Level, ...], reference: Level) -> Level:
    def distance(level: Level) -> float:
        shared = [
            abs(np.log(level.spacing[axis] / reference.spacing[reference.axes.index(name)]))
            for axis, name in enumerate(level.axes)
            if name in reference.axes
        ]
        return float(sum(shared))

    return min(levels, key=distance)
