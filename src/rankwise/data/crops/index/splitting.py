"""Parts of an index for training and test, by a hash of who an image is: new images move no old one."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.crops.index.image import CropImage
from rankwise.data.order import SplitRule
from rankwise.errors import ConfigError

__all__ = ["By", "split_images"]

By: TypeAlias = Literal["plate", "well", "array"] | Callable[[CropImage], str]
_LOG = logging.getLogger("rankwise.crops")


def split_images(
    images: Sequence[CropImage], *, by: By, rule: SplitRule, stratify: By | None = None
) -> list[list[int]]:
    """Return the numbers of the images of each part.

    Args:
        images: the images.
        by: what stays together.
        rule: which group (plate, well or array) goes where.
        stratify: what every part gets its share of; the images of a group are alike in it. None = nothing.

    Raises:
        ConfigError: fractions are out of range, a group has no identity, is not there or lies in several strata, or a
            part is empty.
    """
    groups = [_group(image, by) for image in images]
    if by == "array":
        _refuse_same_names(groups)
    labels = list(dict.fromkeys(groups))
    strata = None if stratify is None else _strata(groups, [_group(image, stratify) for image in images])
    where = dict(zip(labels, rule.parts(labels, strata).tolist(), strict=True))
    part = np.array([where[group] for group in groups])
    parts = [np.flatnonzero(part == number).tolist() for number in range(len(rule.names))]
    _say(groups, parts, rule, by)
    return parts


def _strata(groups: Sequence[str], strata: Sequence[str]) -> IntArray:
    """Return the number of the stratum of each group, in the order in which groups come first."""
    found: dict[str, str] = {}
    for group, stratum in zip(groups, strata, strict=True):
        if found.setdefault(group, stratum) != stratum:
            raise ConfigError(
                f"stratify= wants what is the same for all images of a group; {group!r} has {found[group]!r} and "
                f'{stratum!r}: split by="array", or stratify by something else'
            )
    return np.unique(list(found.values()), return_inverse=True)[1].astype(np.int64)


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


def _say(groups: Sequence[str], parts: Sequence[Sequence[int]], rule: SplitRule, by: By) -> None:
    """Say what came out; few groups seldom come out as asked by their hashes."""
    kind = by if isinstance(by, str) else "group"
    counts = [len({groups[number] for number in part}) for part in parts]
    total = len(set(groups))
    text = ", ".join(
        f"{name}: {count} of {total} {kind}s, {len(part)} images{'' if asked is None else f' (asked for {asked:.0%})'}"
        for name, count, part, asked in zip(rule.names, counts, parts, rule.asked, strict=True)
    )
    empty = [name for name, part in zip(rule.names, parts, strict=True) if not part]
    if empty:
        raise ConfigError(
            f"the split by {kind} leaves {', '.join(empty)} empty ({text}): {total} {kind}s are few for a split by "
            "hash. Take exact=True, another seed, larger fractions, or smaller groups"
        )
    _LOG.info("split by %s: %s", kind, text)
    asked = [(count, fraction) for count, fraction in zip(counts, rule.asked, strict=True) if fraction is not None]
    if not rule.exact and any(abs(count / total - fraction) > fraction / 2 for count, fraction in asked):
        warnings.warn(
            f"the split is far from what was asked for: {text}; exact=True counts instead of drawing", stacklevel=4
        )
