"""Finds the arrays below URIs, their levels in images, and the arrays that a crop fits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rankwise.data.crops.index.image import Level, image_levels, plain_level
from rankwise.data.store.catalogue.lookup import Catalogue
from rankwise.data.store.meta.nodes import read_node, resolve_place
from rankwise.data.store.meta.tree import STORES, Nodes, list_arrays, read_meta
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.images import image_of
from rankwise.errors import ConfigError, DataError

_ABOVE = 3  # an image that names an array may be this many groups above it, as in image/scale0/array

# An array, and which level of an OME-Zarr image it is, 0 is the finest; None = it is a plain array.
Found: TypeAlias = tuple[Level, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """An array with the crop extended to all of its axes.

    Attributes:
        meta: the array.
        crop: extent along each axis; of axes that the crop does not name, channels are taken as asked, others one by
            one.
        level: its level in an OME-Zarr image, 0 is the finest; None = it is a plain array.
    """

    meta: ArrayMeta
    crop: tuple[int, ...]
    level: int | None = None

    @property
    def name(self) -> str:
        """The array and its level, in words."""
        return self.meta.place if self.level is None else f"{self.meta.place} (level {self.level})"


def gather(uris: Iterable[str | os.PathLike[str]]) -> tuple[list[Found], list[str]]:
    """Return every array at or below URIs, without duplicates, and a line about each that cannot be read.

    A URI is an array, a group (an image, a plate), a local folder of them, or a catalogue file.

    Raises:
        DataError: there is nothing at a URI, or its own node cannot be read.
    """
    found: dict[str, Found] = {}
    bad: dict[str, DataError] = {}
    for uri in uris:
        for metas, nodes in _arrays(resolve_place(uri), bad):
            levels: dict[str, dict[str, Found]] = {}
            for meta in metas:
                if meta.place not in found:
                    found[meta.place] = _role(meta, nodes, levels)
    return list(found.values()), [str(error) for error in bad.values()]


def _arrays(place: str, bad: dict[str, DataError]) -> Iterable[tuple[list[ArrayMeta], Nodes]]:
    """Return the arrays at a place, and where to look up the groups that contain them."""
    if "://" not in place and Path(place).is_file():
        catalogue = Catalogue.load(place)
        yield [read_meta(array, nodes=catalogue) for array in catalogue.arrays()], catalogue
        return
    for store in _places(place):
        node = read_node(store)
        if node is not None and node.kind == "group":
            yield list(list_arrays(store, bad=bad).values()), STORES
        else:
            yield [read_meta(store)], STORES


def _places(place: str) -> list[str]:
    """Return the place itself, or the stores in it if it is a plain folder."""
    if read_node(place) is not None or "://" in place:
        return [place]
    folder = Path(place)
    inside = sorted(str(child) for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    stores = [child for child in inside if read_node(child) is not None]
    return stores or [place]  # nothing there: reading it raises the error


def _role(meta: ArrayMeta, nodes: Nodes, levels: dict[str, dict[str, Found]]) -> Found:
    """Return which level of an image an array is; `levels` keeps those of each group, which is opened once."""
    group = meta.place
    for _ in range(_ABOVE):
        group = group.rpartition("/")[0]
        if not group or group.endswith("/"):
            break
        if group not in levels:
            with suppress(DataError):  # not an image, or a damaged one: its arrays count as plain ones
                node = nodes.node(group)
                image = None if node is None or node.kind != "group" else image_of(node, nodes)
                found = () if image is None else image_levels(image)
                levels[group] = {level.array.place: (level, number) for number, level in enumerate(found)}
        if meta.place in levels.setdefault(group, {}):
            return levels[group][meta.place]
    return plain_level(meta), None


def fit(
    arrays: Iterable[Found], crop: tuple[int, ...], *, channels: int | None = None
) -> tuple[list[Fitting], list[str]]:
    """Return the arrays that have enough axes for a crop, and a line about each of the others.

    As in a `CropIndex`, a crop names the last axes that are not channels, or all axes. If it does not name channels,
    all are taken, or as many as given.

    Raises:
        ConfigError: the crop has an extent below 1, or no array has enough axes.
    """
    if not crop or min(crop) < 1:
        raise ConfigError(f"a crop needs an extent >= 1 for each axis, such as 16,128,128; got {list(crop)}")
    fitting, others = [], []
    for level, number in arrays:
        meta = level.array
        if meta.ndim < len(crop):
            others.append(f"{meta.place} has {meta.ndim} axes, the crop {len(crop)}")
        elif 0 in meta.shape:
            others.append(f"{meta.place} is empty: its shape is {list(meta.shape)}")
        else:
            fitting.append(Fitting(meta=meta, crop=_whole_crop(level, crop, channels), level=number))
    if not fitting:
        listing = "; ".join(others[:4]) or "there is no array"
        raise ConfigError(f"a crop of {list(crop)} needs non-empty arrays of at least {len(crop)} axes: {listing}")
    return fitting, others


def _whole_crop(level: Level, crop: tuple[int, ...], channels: int | None) -> tuple[int, ...]:
    meta, axis = level.array, level.channel_axis
    if len(crop) == meta.ndim or axis is None:
        return (1,) * (meta.ndim - len(crop)) + crop
    others = (1,) * (meta.ndim - 1 - len(crop)) + crop
    taken = meta.shape[axis] if channels is None else min(channels, meta.shape[axis])
    return (*others[:axis], taken, *others[axis:])
