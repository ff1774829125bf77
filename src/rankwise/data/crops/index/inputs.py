"""Images from user input, their splits by groups, and joint opening by several ranks."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.crops.index.cells import CellFinder, Maps
from rankwise.data.crops.index.image import CropImage, Level, image_levels, plain_level
from rankwise.data.order import SplitRule
from rankwise.data.store.catalogue.lookup import Catalogue
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.discovery import ImageRef, iter_images
from rankwise.data.store.ngff.images import Image, open_image
from rankwise.errors import ConfigError, DesyncError
from rankwise.world import World

# URIs, catalogues, images, mappings of parts to those, or several of them: too general for a precise type.
Images: TypeAlias = Any


def gather_images(
    given: Images,
    *,
    labels: Collection[str] = (),
    root: str | os.PathLike[str] | None = None,
    where: Callable[[CropImage], bool] | None = None,
) -> tuple[CropImage, ...]:
    """Return the images of an index.

    Args:
        given: the argument of `CropIndex`.
        labels: label images to include as parts, for images that have any.
        root: folder or URL; arrays are named by their paths below it; None = names as found.
        where: images to use; None = all.

    Raises:
        ConfigError: there are none, or one has another type.
        DataError: there is no image at a URI, or it is damaged.
    """
    top = None if root is None else os.fspath(root)
    found = tuple(_image(one, labels, top) for one in _each(given))
    if not found:
        raise ConfigError("an index needs at least one image, got none")
    chosen = found if where is None else tuple(image for image in found if where(image))
    if not chosen:
        raise ConfigError(f"where= excludes all {len(found)} images")
    return chosen


def _each(given: Images) -> Iterator[CropImage | ImageRef | Mapping[str, Any]]:
    """Yield one object for each image: itself, a reference to it, or its parts."""
    if isinstance(given, CropImage | ImageRef | Mapping):
        yield given
    elif isinstance(given, Catalogue):
        yield from given.images()
    elif isinstance(given, str | os.PathLike):
        is_catalogue = "://" not in os.fspath(given) and Path(given).is_file()
        yield from Catalogue.load(given).images() if is_catalogue else iter_images(given)
    elif isinstance(given, ArrayMeta | Level | Image):
        yield {"image": given}
    elif isinstance(given, Iterable):
        for one in given:
            yield from _each(one)
    else:
        raise ConfigError(
            "images must be URIs, a catalogue, opened images or arrays, mappings of parts to those, or several of "
            f"them; got a {type(given).__name__}"
        )


def _image(given: CropImage | ImageRef | Mapping[str, Any], labels: Collection[str], root: str | None) -> CropImage:
    if isinstance(given, CropImage):
        return given
    if isinstance(given, Mapping):
        return _of_parts(given, root)
    image = given.open()
    named = labels and image.levels[0].path  # a plain array has no label images
    return CropImage(
        name=given.name if root is None else _named(given.place, root),
        parts={
            "image": _levels(image),
            **{name: _levels(image.label(name)) for name in (image.labels() if named else ()) if name in labels},
        },
        plate=given.plate,
        well=given.well,
        meta={"field": given.field, "acquisition": given.acquisition},
    )


def _of_parts(parts: Mapping[str, Any], root: str | None) -> CropImage:
    """Return one image made of arrays or images by part."""
    if not parts:
        raise ConfigError('an image needs at least one array, such as {"image": "volume.zarr"}; got none')
    opened = {n: open_image(part) if isinstance(part, str | os.PathLike) else part for n, part in parts.items()}
    images = [part for part in opened.values() if isinstance(part, Image) and part.levels[0].path]
    placed = [level for image in images for level in image_levels(image)]
    levels = {name: _levels(part, placed) for name, part in opened.items()}
    first = next(iter(parts.values()))
    if isinstance(first, str | os.PathLike):
        place = first if isinstance(first, str) and "://" in first else str(Path(first).absolute())
    else:
        place = first.place if isinstance(first, Image) else next(iter(levels.values()))[0].array.place
    return CropImage(name=_named(place, root), parts=levels)


def _named(place: str, root: str | None) -> str:
    path = PurePosixPath(place)
    if root is None:
        return path.name
    top = root if "://" in root else str(Path(root).expanduser().absolute())
    try:
        return str(path.relative_to(top))
    except ValueError:
        raise ConfigError(f"{place} is not below root={root}") from None


def _levels(part: Any, placed: Sequence[Level] = ()) -> tuple[Level, ...]:
    """Return the levels of a part; an array lies where one of its shape lies that has a place in space, if any does."""
    if isinstance(part, Level):
        return (part,)
    if isinstance(part, ArrayMeta):
        return (_placed_like(placed, plain_level(part)),)
    if isinstance(part, Image):
        return image_levels(part) if part.levels[0].path else _levels(part.levels[0].array, placed)
    if isinstance(part, str | os.PathLike):
        return _levels(open_image(part), placed)
    if isinstance(part, list | tuple) and part:
        return tuple(level for one in part for level in _levels(one, placed))
    raise ConfigError(
        "a part of an image must be a URI, an array, an image, a level, or a list of levels, the finest first; got "
        f"{part!r:.80}"
    )


def _placed_like(placed: Sequence[Level], level: Level) -> Level:
    """Return an array at the place of the first level whose last axes have its shape, channels aside."""
    mine = [axis for axis in range(level.array.ndim) if axis != level.channel_axis]
    for other in placed:
        theirs = [axis for axis in range(other.array.ndim) if axis != other.channel_axis][-len(mine) :]
        if mine and [level.array.shape[a] for a in mine] == [other.array.shape[a] for a in theirs]:
            spacing, origin = list(level.spacing), list(level.origin)
            for axis, their in zip(mine, theirs, strict=True):
                spacing[axis], origin[axis] = other.spacing[their], other.origin[their]
            return replace(level, spacing=tuple(spacing), origin=tuple(origin))
    return level


By: TypeAlias = Literal["plate", "well", "array"] | Callable[[CropImage], str]
_LOG = logging.getLogger("rankwise.crops")


def split_images(
    images: Sequence[CropImage], *, by: By, rule: SplitRule, stratify: By | None = None
) -> list[list[int]]:
    """Return the numbers of the images of each part.

    Raises:
        ConfigError: fractions are out of range, a group has no identity, does not exist or is in several strata, or a
            part is empty.
    """
    groups = [_group(image, by) for image in images]
    twice = next((group for group, count in Counter(groups).items() if count > 1), None)
    if by == "array" and twice is not None:
        raise ConfigError(
            f"several images are named {twice!r}, so a split by name cannot distinguish them: pass root=, below which "
            "their paths are their names, or split by a function of the image"
        )
    labels = list(dict.fromkeys(groups))
    strata = None if stratify is None else _strata(groups, [_group(image, stratify) for image in images])
    where = dict(zip(labels, rule.parts(labels, strata).tolist(), strict=True))
    part = np.array([where[group] for group in groups])
    parts = [np.flatnonzero(part == number).tolist() for number in range(len(rule.names))]
    kind, total = by if isinstance(by, str) else "group", len(labels)
    counts = [len({groups[number] for number in part}) for part in parts]
    words = [f"{count} of {total} {kind}s, {len(part)} images" for count, part in zip(counts, parts, strict=True)]
    rule.log_sizes(_LOG, kind, counts, total, words)
    return parts


def _strata(groups: Sequence[str], strata: Sequence[str]) -> IntArray:
    """Return the stratum number of each group, in the order of first appearance of the groups."""
    found: dict[str, str] = {}
    for group, stratum in zip(groups, strata, strict=True):
        if found.setdefault(group, stratum) != stratum:
            raise ConfigError(
                f"stratify= needs one value for all images of a group; {group!r} has {found[group]!r} and "
                f'{stratum!r}: use by="array", or stratify by something else'
            )
    return np.unique(list(found.values()), return_inverse=True)[1].astype(np.int64)


def _group(image: CropImage, by: By) -> str:
    if callable(by):
        return str(by(image))
    if by == "array":
        return image.name
    if by not in ("plate", "well"):
        raise ConfigError(f'a split needs by="plate", "well", "array" or a function of an image; got {by!r}')
    if not image.plate or (by == "well" and not image.well):
        raise ConfigError(
            f'image {image.name!r} has no {by}: use by="array", or a function of the image, such as '
            "lambda image: image.meta['donor']"
        )
    return image.plate if by == "plate" else f"{image.plate}/{image.well}"


_Images = tuple[CropImage, ...]


def make_together(
    world: World, finder: CellFinder, gather: Callable[[], _Images], build: Callable[[_Images], str]
) -> None:
    """Gather images and maps on the main rank, and make the index on all. Every rank calls it.

    Raises:
        DesyncError: another rank failed, or the fingerprints differ.
    """
    fingerprint = ""

    def make() -> tuple[_Images, Maps, str]:
        nonlocal fingerprint
        images = gather()
        fingerprint = build(images)
        return images, finder.maps, fingerprint

    images, finder.maps, wanted = world.from_main(make)
    error: Exception | None = None
    if not world.is_main:
        try:
            fingerprint = build(images)
        except Exception as caught:  # noqa: BLE001  (told to all ranks, then raised)
            error = caught
        if error is None and fingerprint != wanted:
            error = DesyncError(
                f"the index of rank {world.rank} has the fingerprint {fingerprint}, that of the main rank {wanted}: "
                "the ranks got different arguments, or a function among them (labels=, weights=, curriculum=) "
                "returns a different result on each rank"
            )
    world.raise_together(error)
