"""Assigns tiles to parts of a stitched volume, and decides what must be in memory at a time.

A volume is swept along one axis. A *slab* is the part in one row of files along that axis; a *layer* is the set of
tiles with the same start on it. Layers run in ascending order, so a slab is complete, and can be written and dropped,
once the next layer starts behind it. The index alone decides which tiles form a batch and the order of summation, so a
slab is the same whichever rank makes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from rankwise.data.contract import BaseOrder, IntArray, ListedIds, NDArray, OrderState, Step
from rankwise.data.crops.index.crop_index import CropIndex
from rankwise.data.crops.index.places import Tiles
from rankwise.errors import ConfigError

Window: TypeAlias = Literal["gaussian", "hann", "constant"]

# Below this memory, having many slabs, which many ranks can share, matters more than saving bytes.
_SMALL_BYTES = 256 << 20


def tile_window(window: Window | NDArray, extent: Sequence[int]) -> NDArray:
    """Return the weights of a tile's elements, float64 of shape `extent`, all in (0, 1].

    "gaussian" falls to each side with a deviation of an eighth of the extent, "hann" is ``sin(pi (i + 1/2) / n) ** 2``.

    Raises:
        ConfigError: there is no such window, or the array has another shape or values that are not positive.
    """
    if isinstance(window, str):
        if window not in get_args(Window):
            raise ConfigError(f"window must be {', '.join(get_args(Window))} or an array of weights; got {window!r}")
        weights: NDArray = np.ones(())
        for length in extent:
            place = np.arange(length) + 0.5
            if window == "gaussian":
                line = np.exp(-0.5 * ((place - length / 2) / (length / 8)) ** 2)
            else:
                line = np.sin(np.pi * place / length) ** 2 if window == "hann" else np.ones(length)
            weights = np.multiply.outer(weights, line)
        return weights
    given = np.asarray(window, dtype=np.float64)
    if given.shape != tuple(extent) or not (np.isfinite(given).all() and (given > 0).all()):
        raise ConfigError(
            f"window= needs one finite weight above 0 for each element of a tile, shape {list(extent)}; got shape "
            f"{list(given.shape)} with values from {given.min() if given.size else 0:g}"
        )
    highest = given.max()
    return np.asarray(given / highest)


@dataclass(frozen=True, slots=True)
class Layer:
    """Tiles of one section with the same start on the swept axis.

    Attributes:
        start: that start.
        low: the first of them in the table of tiles.
        high: the index after the last.
    """

    start: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Adjacent slabs of one section of an image that one rank makes.

    Attributes:
        image: number of the image.
        stepped: coordinates along the stepped axes.
        slabs: numbers of the slabs, see `SlabPlan.num_slabs`.
        low: their first element.
        high: element after the last.
        layers: the layers that overlap them, in ascending order.
    """

    image: int
    stepped: tuple[int, ...]
    slabs: range
    low: int
    high: int
    layers: tuple[Layer, ...]


class SlabPlan:
    """The slabs of all images of an index, and their tiles.

    Args:
        index: tiles.
        files: int64[N, D], extent of a file of each image's output along the axes of the reference.
        channels: numbers that the model returns for each place.
        itemsize: bytes of a number in the sums.

    Attributes:
        sweep: the reference axis along which volumes are swept.
        ids: int64[T], numbers of the tiles, section by section, layer by layer.
        starts: int64[T, D], their starts.
        counts: int64[N], slabs along the swept axis.
        window_bytes: largest memory for the sums of a rank.

    Raises:
        ConfigError: the index draws random crops, or leaves out places without a mask.
    """

    def __init__(self, index: CropIndex, files: IntArray, *, channels: int, itemsize: int) -> None:
        made = index.compiled(0)
        if not isinstance(made.placement, Tiles):
            raise ConfigError(
                "a stitcher needs an index of tiles: remove num_random=, and let tiles overlap with stride="
            )
        self.frame = made.frame
        if made.placement.kept is None:
            _refuse_gaps(index, made.placement)
        self._files = files
        self._number_bytes = (channels + 1) * itemsize
        self.sweep = self._best_axis()
        self.window_bytes = self._window_bytes(self.sweep)
        found = index.places(np.arange(len(index)), seed=0)
        others = [axis for axis in range(self.frame.num_axes) if axis != self.sweep]
        keys = [found.starts[:, axis] for axis in reversed(others) if axis >= self.frame.num_stepped]
        keys += [found.starts[:, self.sweep]]
        keys += [found.starts[:, axis] for axis in reversed(range(self.frame.num_stepped))]
        order = np.lexsort([*keys, found.images])
        self.ids: IntArray = order.astype(np.int64)
        self.starts: IntArray = found.starts[order]
        self._layers = self._layers_of(found.images[order])
        self.counts: IntArray = -(-self.frame.sizes[:, self.sweep] // files[:, self.sweep])

    def num_slabs(self, image: int) -> int:
        """Return the number of slabs of an image; slab n is ``n % counts[image]`` of section ``n // counts[image]``."""
        return int(self.counts[image]) * math.prod(self._stepped(image))

    def owners(self, left: Sequence[tuple[int, int]], world_size: int) -> IntArray:
        """Return the rank for each of the remaining slabs (image, number): runs of about equal cost."""
        layers = (self._meeting(i, slab // int(self.counts[i]), *self.span(i, slab)) for i, slab in left)
        costs = np.array([1 + sum(layer.high - layer.low for layer in met) for met in layers], dtype=np.float64)
        before = np.cumsum(costs) - costs / 2
        return (before * world_size / costs.sum()).astype(np.int64) if len(left) else np.zeros(0, np.int64)

    def runs(self, slabs: Sequence[tuple[int, int]]) -> Iterator[Run]:
        """Yield runs of adjacent slabs (image, number), given in ascending order."""
        where = ((image, slab, slab // int(self.counts[image])) for image, slab in slabs)
        runs = itertools.groupby(enumerate(where), key=lambda each: (each[1][0], each[1][2], each[1][1] - each[0]))
        for (image, section, _), members in runs:
            numbers = [slab for _, (_, slab, _) in members]
            low, high = self.span(image, numbers[0])[0], self.span(image, numbers[-1])[1]
            sections = self._stepped(image)
            yield Run(
                image=image,
                stepped=tuple(map(int, np.unravel_index(section, sections))) if sections else (),
                slabs=range(numbers[0], numbers[-1] + 1),
                low=low,
                high=high,
                layers=self._meeting(image, section, low, high),
            )

    def canvas(self, run: Run, *, channels: int, window: NDArray) -> Canvas:
        """Return the memory in which the tiles of a run are summed."""
        sizes = self.frame.sizes[run.image, self.frame.num_stepped :].tolist()
        axis = self.sweep - self.frame.num_stepped
        length = int(self.frame.extent[self.sweep] + self._files[run.image, self.sweep] - 1)
        return Canvas(sizes, axis=axis, low=run.low, high=run.high, length=length, channels=channels, window=window)

    def span(self, image: int, slab: int) -> tuple[int, int]:
        """Return the first element of a slab along the swept axis, and the one after its last."""
        height, number = int(self._files[image, self.sweep]), slab % int(self.counts[image])
        return number * height, min((number + 1) * height, int(self.frame.sizes[image, self.sweep]))

    def _stepped(self, image: int) -> tuple[int, ...]:
        return tuple(int(size) for size in self.frame.sizes[image, : self.frame.num_stepped])

    def _meeting(self, image: int, section: int, low: int, high: int) -> tuple[Layer, ...]:
        extent = int(self.frame.extent[self.sweep])
        layers = self._layers.get((image, section), ())
        return tuple(layer for layer in layers if layer.start < high and layer.start + extent > low)

    def _layers_of(self, images: IntArray) -> dict[tuple[int, int], tuple[Layer, ...]]:
        """Return the layers of each section of each image, from the sorted tiles."""
        if not len(images):
            return {}
        stepped = self.frame.num_stepped
        keys = np.column_stack([images, self.starts[:, :stepped], self.starts[:, self.sweep]])
        cuts = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
        found: dict[tuple[int, int], list[Layer]] = {}
        for low, high in itertools.pairwise([0, *cuts.tolist(), len(keys)]):
            image, *coords, start = keys[low].tolist()
            section = int(np.ravel_multi_index(coords, self._stepped(image))) if stepped else 0
            found.setdefault((image, section), []).append(Layer(start, low, high))
        return {key: tuple(layers) for key, layers in found.items()}

    def _best_axis(self) -> int:
        """Return the axis with the most slabs within little memory, else the one with the least memory."""
        axes = range(self.frame.num_stepped, self.frame.num_axes)
        allowed = max(_SMALL_BYTES, min(map(self._window_bytes, axes)))
        numbers = {axis: int((-(-self.frame.sizes[:, axis] // self._files[:, axis])).sum()) for axis in axes}
        suiting = [axis for axis in axes if self._window_bytes(axis) <= allowed]
        return min(suiting, key=lambda axis: (-numbers[axis], self._window_bytes(axis)))

    def _window_bytes(self, axis: int) -> int:
        frame = self.frame
        sizes = frame.sizes[:, frame.num_stepped :].astype(np.float64)
        length = np.minimum(frame.extent[axis] + self._files[:, axis] - 1, frame.sizes[:, axis])
        per_image = sizes.prod(axis=1) / frame.sizes[:, axis] * length
        return int(per_image.max() * self._number_bytes)


def _refuse_gaps(index: CropIndex, tiles: Tiles) -> None:
    frame, lattice = index.compiled(0).frame, tiles.lattice
    reach = lattice.last + frame.extent
    gaps = ((lattice.step > frame.extent) & (lattice.counts > 1)) | (reach < frame.sizes) | (lattice.counts < 1)
    if gaps.any():
        image, axis = (int(place[0]) for place in np.nonzero(gaps))
        raise ConfigError(
            f"the tiles do not cover image {index.images[image].name!r} along axis {frame.axes[axis]}: a "
            f'stitcher needs a stride of at most the shape {list(frame.shape)}, and edges="shift" or "pad"; to leave '
            "places out use mask="
        )


class Canvas:
    """The weighted sums of a run's tiles, as long as they are incomplete.

    Args:
        sizes: sizes of the volume along the cropped axes.
        axis: the swept one of them.
        low: first element of the run along it.
        high: element after the last.
        length: number of elements in memory along it.
        channels: numbers for each place.
        window: weights of a tile's elements, in the dtype of the sums.
    """

    def __init__(
        self, sizes: Sequence[int], *, axis: int, low: int, high: int, length: int, channels: int, window: NDArray
    ) -> None:
        self._sizes, self._axis, self._low, self._high = list(sizes), axis, low, high
        self._window = window
        held = [min(length, high - low), *(size for number, size in enumerate(sizes) if number != axis)]
        # The swept axis comes first, so that the complete part is one block of memory.
        self._sums = np.zeros([held[0], channels, *held[1:]], dtype=window.dtype)
        self._weights = np.zeros(held, dtype=window.dtype)

    def add(self, start: Sequence[int], values: NDArray) -> None:
        """Add a tile, [channels, *extent], that starts at `start` on the cropped axes; it may leave the volume."""
        bounds = [(0, size) for size in self._sizes]
        bounds[self._axis] = (self._low, min(self._high, self._low + len(self._weights)))
        low = [max(s, first) for s, (first, _) in zip(start, bounds, strict=True)]
        high = [min(s + e, end) for s, e, (_, end) in zip(start, self._window.shape, bounds, strict=True)]
        if any(b <= a for a, b in zip(low, high, strict=True)):
            return
        inside = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
        low[self._axis], high[self._axis] = low[self._axis] - self._low, high[self._axis] - self._low
        place = [slice(a, b) for a, b in zip(low, high, strict=True)]
        place.insert(0, place.pop(self._axis))
        window = self._window[inside]
        self._sums[(place[0], slice(None), *place[1:])] += np.moveaxis(
            values[(slice(None), *inside)] * window, self._axis + 1, 0
        )
        self._weights[tuple(place)] += np.moveaxis(window, self._axis, 0)

    def take(self, high: int) -> tuple[NDArray, NDArray]:
        """Return the means up to element `high` of the swept axis, and drop them.

        Returns:
            The means [channels, *sizes], and bool [*sizes], True for places without a tile; the means are 0 there.
        """
        count = high - self._low
        sums, weights = self._sums[:count], self._weights[:count]
        missing = weights == 0
        means = np.divide(sums, np.where(missing, 1, weights)[:, None])
        for held in (self._sums, self._weights):
            held[: len(held) - count] = held[count:]
            held[len(held) - count :] = 0
        self._low = high
        return np.moveaxis(means, 0, self._axis + 1), np.moveaxis(missing, 0, self._axis)


class TileOrder(BaseOrder):
    """The contract's `Order` over a list of batches: one pass of one process, neither divided nor resumed."""

    kind = "sequential"

    def __init__(self, ids: IntArray, cuts: Sequence[tuple[int, int]], *, fingerprint: str) -> None:
        self._ids, self._cuts = ids, cuts
        self._ends = np.cumsum([high - low for low, high in cuts])
        self.batch_size = max(high - low for low, high in cuts)
        self.fingerprint = fingerprint
        self.recipe = f"tiles of {fingerprint}"

    def start(self, epoch: int = 0) -> OrderState:
        """Return the state before the first batch."""
        return OrderState(seed=0, epoch=epoch, position=0, recipe=self.recipe)

    def num_samples(self, epoch: int) -> int:  # noqa: ARG002  (there is one pass)
        """Return the number of tiles to run, some possibly twice."""
        return int(self._ends[-1])

    def num_steps(self, state: OrderState) -> int:
        """Return the number of remaining batches."""
        return len(self._cuts) - self._index(state)

    def step(self, state: OrderState) -> Step:
        """Return the batch that begins at a state."""
        index = self._index(state)
        low, high = self._cuts[index]
        end = int(self._ends[index])
        return Step(
            epoch=state.epoch,
            index=index,
            start=state.position,
            count=high - low,
            size=high - low,
            members=ListedIds(ids=self._ids[low:high], lanes=np.zeros(high - low, dtype=np.int64)),
            resume=OrderState(seed=0, epoch=state.epoch, position=end, recipe=self.recipe),
        )

    def _index(self, state: OrderState) -> int:
        return int(np.searchsorted(self._ends, state.position, side="right"))
