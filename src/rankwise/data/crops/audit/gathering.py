"""The arrays below URIs, and which of them a crop fits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankwise.data.store.meta import ArrayMeta, read_meta
from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.groups import list_arrays
from rankwise.data.store.meta.nodes import read_node
from rankwise.errors import ConfigError, DataError

__all__ = ["Fitting", "fit", "gather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """An array with the crop along all of its axes.

    Attributes:
        meta: the array.
        crop: extent along each axis: leading axes that the crop does not name are cropped to one element.
    """

    meta: ArrayMeta
    crop: tuple[int, ...]


def gather(uris: Iterable[str | os.PathLike[str]]) -> tuple[list[ArrayMeta], list[str]]:
    """Return every array at or below URIs, each once, and a line about each that cannot be read.

    A URI is an array, a group (an image, a plate), or a local folder of them.

    Raises:
        DataError: there is nothing at a URI, or what it names itself cannot be read.
    """
    found: dict[str, ArrayMeta] = {}
    bad: dict[str, DataError] = {}
    for uri in uris:
        for place in _places(resolve_place(uri)):
            for meta in _arrays_at(place, bad):
                found.setdefault(meta.place, meta)
    return list(found.values()), [str(error) for error in bad.values()]


def _places(place: str) -> list[str]:
    """A place, or the stores in a folder that is none."""
    if read_node(place) is not None or "://" in place:
        return [place]
    folder = Path(place)
    inside = sorted(str(child) for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    stores = [child for child in inside if read_node(child) is not None]
    return stores or [place]  # nothing there: reading it says so


def _arrays_at(place: str, bad: dict[str, DataError]) -> list[ArrayMeta]:
    node = read_node(place)
    if node is not None and node.kind == "group":
        return list(list_arrays(place, bad=bad).values())
    return [read_meta(place)]


def fit(metas: Iterable[ArrayMeta], crop: tuple[int, ...]) -> tuple[list[Fitting], list[str]]:
    """Return the arrays that have enough axes for a crop, and a line about each of the others.

    Raises:
        ConfigError: the crop is not made of extents >= 1, or no array has so many axes.
    """
    if not crop or min(crop) < 1:
        raise ConfigError(f"a crop wants an extent >= 1 for each axis, such as 16,128,128; got {list(crop)}")
    fitting, others = [], []
    for meta in metas:
        missing = meta.ndim - len(crop)
        if missing < 0:
            others.append(f"{meta.place} has {meta.ndim} axes, the crop {len(crop)}")
        elif 0 in meta.shape:
            others.append(f"{meta.place} is empty: its shape is {list(meta.shape)}")
        else:
            fitting.append(Fitting(meta=meta, crop=(1,) * missing + crop))
    if not fitting:
        listing = "; ".join(others[:4]) or "there is no array"
        raise ConfigError(
            f"a crop of {list(crop)} wants arrays of at least {len(crop)} axes that hold something: {listing}"
        )
    return fitting, others
