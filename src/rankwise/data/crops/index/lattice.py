"""Where crops may start: along each axis of each image a row of starts, as numbers instead of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["Edges", "Lattice", "free_lattice", "tile_lattice"]

Edges: TypeAlias = Literal["shift", "pad", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lattice:
    """Starts of N images along D axes: ``min(origin + coordinate * step, last)`` for coordinates below `counts`.

    Attributes:
        origin: int64[N, D], first start.
        step: int64[N, D], distance between starts.
        last: int64[N, D], largest start; the step to it may be shorter than the others.
        counts: int64[N, D], number of starts; 0 where an image has no room for a crop.
    """

    origin: IntArray
    step: IntArray
    last: IntArray
    counts: IntArray

    def totals(self) -> IntArray:
        """Return the number of crops of each image, int64[N]."""
        totals: IntArray = np.prod(self.counts, axis=1, dtype=np.int64)
        return totals

    def starts(self, images: IntArray, coords: IntArray) -> IntArray:
        """Return the starts at coordinates int64[B, D] of images int64[B]."""
        return np.minimum(self.origin[images] + coords * self.step[images], self.last[images])

    def nearest(self, images: IntArray, starts: IntArray) -> IntArray:
        """Return the starts of the lattice next to arbitrary ones, int64[B, D]."""
        step = self.step[images]
        coords = (starts - self.origin[images] + step // 2) // step
        coords = np.clip(coords, 0, self.counts[images] - 1)
        return self.starts(images, coords)


def tile_lattice(sizes: IntArray, extent: IntArray, stride: IntArray, *, edges: Edges) -> Lattice:
    """Return the starts of tiles that cover images.

    Args:
        sizes: int64[N, D], sizes of the images.
        extent: int64[D], extent of a tile.
        stride: int64[D] or [N, D], distance between tiles.
        edges: what becomes of a last tile that would stick out: "shift" moves it inside, where it overlaps with its
            neighbour, "pad" lets it stick out, "drop" leaves it out.

    Raises:
        ConfigError: `edges` is unknown, or an image is smaller than a tile and `edges` is "shift".
    """
    if edges not in get_args(Edges):
        raise ConfigError(f"edges is one of {', '.join(get_args(Edges))}; got {edges!r}")
    room = sizes - extent
    whole = room // stride + 1
    if edges == "drop":
        counts = np.where(room < 0, 0, whole)
    else:
        covering = -(-room // stride) + 1
        # With a stride beyond the extent a tile could lie outside altogether.
        counts = np.clip(covering, 1, np.maximum((sizes - 1) // stride + 1, 1))
    last = (counts - 1) * stride
    if edges == "shift":
        _refuse_small(sizes, extent)
        last = np.minimum(last, room)
    return Lattice(origin=np.zeros_like(sizes), step=np.broadcast_to(stride, sizes.shape), last=last, counts=counts)


def free_lattice(sizes: IntArray, extent: IntArray, step: IntArray, *, padded: bool) -> Lattice:
    """Return the starts that a random crop may take: every multiple of `step` inside, and the last place inside.

    Where an image is smaller than a crop and `padded`, the crop lies around it, at every offset that holds all of it.

    Args:
        sizes: int64[N, D], sizes of the images.
        extent: int64[D], extent of a crop.
        step: int64[D] or [N, D], distance between starts.
        padded: whether crops may stick out.

    Raises:
        ConfigError: an image is smaller than a crop and not `padded`.
    """
    if not padded:
        _refuse_small(sizes, extent)
    room = sizes - extent
    origin, last = np.minimum(room, 0), np.maximum(room, 0)
    counts = -(-(last - origin) // step) + 1
    return Lattice(origin=origin, step=np.broadcast_to(step, sizes.shape), last=last, counts=counts)


def _refuse_small(sizes: IntArray, extent: IntArray) -> None:
    small = (sizes < extent).any(axis=1)
    if small.any():
        image = int(np.flatnonzero(small)[0])
        raise ConfigError(
            f"crops of {extent.tolist()} do not fit into image {image}, which has {sizes[image].tolist()} along these "
            f"axes ({int(small.sum())} of {len(sizes)} images are too small): take smaller crops, leave those images "
            'out with where=, or choose pad="fill", "edge" or "reflect" (for tiles with edges="pad")'
        )
