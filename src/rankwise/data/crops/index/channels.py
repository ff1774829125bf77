"""Which channels a field takes, as the boxes of a sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.data.crops.index.take import Take
from rankwise.errors import ConfigError

__all__ = ["channel_boxes"]


def channel_boxes(
    name: str, take: Take, images: Sequence[CropImage], levels: Sequence[Level], axis: int | None
) -> tuple[IntArray, int]:
    """Return the first channel of each box of a sample, int64[N, K], and how many channels a box holds.

    Channels that follow each other come in one box, others in a box each.

    Args:
        name: the field.
        take: what it takes.
        images: the N images.
        levels: the field's array in each.
        axis: axis of the channels that are chosen from, None if there is none.

    Raises:
        ConfigError: there is no such channel, or images differ in what "all" are.
    """
    if axis is None:
        if take.channel is not None:
            raise ConfigError(
                f"field {name!r} asks for channel {take.channel!r}, but the axes of {levels[0].array.place} "
                f"({', '.join(levels[0].axes)}) have no channels to choose from"
            )
        return np.zeros((len(levels), 1), dtype=np.int64), 1
    if take.channel is None:
        return np.zeros((len(levels), 1), dtype=np.int64), _number_of_all(name, axis, images, levels)
    wanted = [take.channel] if isinstance(take.channel, str | int) else list(take.channel)
    found = np.array([[level.channel(channel) for channel in wanted] for level in levels], dtype=np.int64)
    if (np.diff(found, axis=1) == 1).all():
        return found[:, :1], len(wanted)
    return found, 1


def _number_of_all(name: str, axis: int, images: Sequence[CropImage], levels: Sequence[Level]) -> int:
    sizes = [level.array.shape[axis] for level in levels]
    other = next((number for number, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise ConfigError(
            f"field {name!r} takes all channels, but {images[0].name!r} has {sizes[0]} and {images[other].name!r} "
            f"{sizes[other]}: name those you want, Take(channel=[...])"
        )
    return sizes[0]
