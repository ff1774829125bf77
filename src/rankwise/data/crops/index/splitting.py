"""Parts of an index for training and test, by a hash of who an image is: new images move no old one."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from rankwise.data.crops.index.image import CropImage
from rankwise.data.order import part_at, place_of_group
from rankwise.errors import ConfigError

__all__ = ["By", "split_images"]

By: TypeAlias = Literal["plate", "well", "array"] | Callable[[CropImage], str]
_LOG = logging.getLogger("rankwise.crops")


def split_images(
    images: Sequence[CropImage], *, by: By, fractions: Sequence[float], names: Sequence[str], seed: int
) -> list[list[int]]:
    """Return the numbers of the images of each part.

    A group (plate, well or array) goes where the hash of its identity falls: parts are stretches of [0, 1) as long as
    their fractions. So an image's part depends on nothing but its identity, the fractions and the seed.

    Args:
        images: the images.
        by: what stays together.
        fractions: how large the parts are, at most 1 together; what they leave is in no part.
        names: names of the parts, for messages.
        seed: another seed, another split.

    Raises:
        ConfigError: fractions are out of range, a group has no identity, or a part is empty.
    """
    groups = [_group(image, by) for image in images]
    if by == "array":
        _refuse_same_names(groups)
    part = part_at(np.array([place_of_group(group, seed) for group in groups]), fractions)
    parts = [np.flatnonzero(part == number).tolist() for number in range(len(fractions))]
    _say(groups, parts, fractions, names, by)
    return parts


def _group(image: CropImage, by: By) -> str:
    if callable(by):
        return str(by(image))
    if by == "array":
        return image.name
    if by not in ("plate", "well"):
        raise ConfigError(f'a split goes by "plate", "well", "array" or a function of an image; got {by!r}')
    if not image.plate or (by == "well" and not image.well):
        raise ConfigError(
            f'image {image.name!r} has no {by}: split by="array", or by a function of the image, such as '
            "lambda image: image.meta['donor']"
        )
    return image.plate if by == "plate" else f"{image.plate}/{image.well}"


def _refuse_same_names(groups: Sequence[str]) -> None:
    twice = next((group for group, count in Counter(groups).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(
            f"several images are named {twice!r}, so a split by name cannot tell them apart: give root=, below which "
            "their paths are their names, or split by a function of the image"
        )


def _say(
    groups: Sequence[str], parts: Sequence[Sequence[int]], fractions: Sequence[float], names: Sequence[str], by: By
) -> None:
    """Say what came out; few groups seldom come out as asked."""
    kind = by if isinstance(by, str) else "group"
    counts = [len({groups[number] for number in part}) for part in parts]
    total = len(set(groups))
    text = ", ".join(
        f"{name}: {count} of {total} {kind}s, {len(part)} images (asked for {fraction:.0%})"
        for name, count, part, fraction in zip(names, counts, parts, fractions, strict=True)
    )
    empty = [name for name, part in zip(names, parts, strict=True) if not part]
    if empty:
        raise ConfigError(
            f"the split by {kind} leaves {', '.join(empty)} empty ({text}): {total} {kind}s are few for a split by "
            "hash. Take another seed, larger fractions, or smaller groups"
        )
    _LOG.info("split by %s: %s", kind, text)
    wrong = [abs(count / total - fraction) > fraction / 2 for count, fraction in zip(counts, fractions, strict=True)]
    if any(wrong):
        warnings.warn(f"the split is far from what was asked for: {text}", stacklevel=4)
