"""Compiles rules into the tables from which crops are computed."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankwise._process.place import speaking_rank
from rankwise.data.contract import BoolArray, FieldSpec, FloatArray
from rankwise.data.crops.fields import Scaling, field_specs
from rankwise.data.crops.index.cells import BitTable, CellFinder, CellGrid, CellTable
from rankwise.data.crops.index.image import CropImage, Take
from rankwise.data.crops.index.lattice import Lattice, free_lattice, snapped_lattice, tile_lattice
from rankwise.data.crops.index.layout import FieldLayout, Frame, make_frame, make_layout
from rankwise.data.crops.index.places import Draws, Placement, Tiles, choose_block, image_bounds, image_weights
from rankwise.data.crops.index.rules import Rules
from rankwise.errors import ConfigError

_TILES_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compiled:
    """The tables of one set of rules.

    Attributes:
        frame: the reference.
        layouts: the fields by name.
        placement: the places of crops.
        digest: hash of all inputs.
    """

    frame: Frame
    layouts: Mapping[str, FieldLayout]
    placement: Placement
    digest: str

    @property
    def specs(self) -> dict[str, FieldSpec]:
        """The fields and their masks."""
        return field_specs({name: layout.field for name, layout in self.layouts.items()})

    @property
    def element_bytes(self) -> float:
        """Decoded bytes per element of the reference, over all fields, in the first image."""
        return sum(layout.element_bytes for layout in self.layouts.values())


def compile_rules(
    images: Sequence[CropImage], takes: Mapping[str, Take], rules: Rules, finder: CellFinder, *, used: BoolArray
) -> Compiled:
    """Return the tables of an index over the images that are `used`, bool[N]; the first field is the reference.

    Raises:
        ConfigError: the rules do not fit the images, or no crop is left.
    """
    name, take = next(iter(takes.items()))
    part = take.part or name
    level = rules.level if take.level is None else take.level
    frame = make_frame(images, part=part, level=level, shape=rules.shape)
    lattice = _lattice(frame, rules)
    layouts = {
        name: make_layout(name, take, images, frame, lattice, level=level if (take.part or name) == part else None)
        for name, take in takes.items()
    }
    if rules.snap:
        placed = [layout.on_reference(frame.num_axes) for layout in layouts.values()]
        ratio, shift = (np.stack(each) for each in zip(*placed, strict=True))
        lattice = snapped_lattice(lattice, ratio, shift, tiles=rules.num_random is None)
    mask = None if rules.mask is None else finder.find(images, rules.mask, frame, used)
    labelled: list[CellGrid] | None = None
    if rules.foreground is not None and rules.foreground.fraction > 0:
        labelled = finder.find(images, rules.foreground, frame, used)
        labelled = labelled if mask is None else list(map(_both, labelled, mask))
    lattice = replace(lattice, counts=np.where(used[:, None], lattice.counts, 0))
    placement: Placement
    if rules.num_random is None:
        placement, parts = _tiles(frame, rules, lattice, layouts, mask)
    else:
        placement, parts = _draws(images, frame, rules, lattice, mask=mask, foreground=labelled)
    return Compiled(frame=frame, layouts=layouts, placement=placement, digest=_digest(takes, rules, layouts, parts))


def _lattice(frame: Frame, rules: Rules) -> Lattice:
    if rules.num_random is not None:
        step = np.minimum(frame.chunks, frame.sizes) if rules.align else np.ones_like(frame.sizes)
        return free_lattice(frame.sizes, frame.extent, step, padded=rules.pad is not None)
    stride = frame.extent.copy()
    if rules.stride is not None:
        stride[frame.num_stepped :] = rules.stride
    if rules.align and (stride % np.minimum(frame.chunks, frame.sizes)).any():
        raise ConfigError(
            f'align="chunk" needs a stride of whole chunks: the stride is {stride.tolist()}, the chunks of '
            f"{frame.levels[0].array.place} are {frame.chunks[0].tolist()} along these axes"
        )
    return tile_lattice(frame.sizes, frame.extent, stride, edges=rules.edges)


def _both(cells: CellGrid, mask: CellGrid) -> CellGrid:
    """Return the chosen cells whose centre is also chosen in a mask of another resolution."""
    chosen = cells.chosen.copy()
    places = np.argwhere(chosen)
    chosen[tuple(places.T)] = mask.at((places + 0.5) * cells.size + cells.corner)
    return CellGrid(chosen=chosen, size=cells.size, corner=cells.corner)


def _tiles(
    frame: Frame, rules: Rules, lattice: Lattice, layouts: Mapping[str, FieldLayout], mask: list[CellGrid] | None
) -> tuple[Tiles, list[object]]:
    block = choose_block(
        extent=frame.extent,
        stride=lattice.step[0],
        chunks=frame.chunks[0],
        counts=lattice.counts.max(axis=0),
        element_bytes=sum(layout.element_bytes for layout in layouts.values()),
        region_bytes=rules.region_bytes,
    )
    tiles = Tiles(lattice=lattice, block=block, ends=np.cumsum(lattice.totals()))
    if mask is not None and rules.mask is not None and tiles.num_tiles:
        kept = BitTable.of(_kept_tiles(tiles, mask, frame, rules.mask.share))
        tiles = replace(tiles, kept=kept)
    if tiles.num_crops == 0:
        raise ConfigError(
            f"no crop of {list(frame.shape)} is left in {len(frame.levels)} images: the images are smaller (see "
            "edges=), or mask= and where= exclude everything"
        )
    return tiles, [block.tolist(), tiles.ends.tobytes(), b"" if tiles.kept is None else tiles.kept.packed.tobytes()]


def _kept_tiles(tiles: Tiles, mask: list[CellGrid], frame: Frame, share: float) -> list[BoolArray]:
    kept = []
    for low in range(0, tiles.num_tiles, _TILES_AT_ONCE):
        places = tiles.tile_places(np.arange(low, min(low + _TILES_AT_ONCE, tiles.num_tiles), dtype=np.int64))
        part = np.zeros(len(places.images), dtype=np.bool_)
        for image in np.unique(places.images).tolist():
            mine = places.images == image
            held = mask[image].fraction_in(places.starts[mine], frame.extent)
            part[mine] = (held > 0) & (held >= share)
        kept.append(part)
    return kept


def _draws(
    images: Sequence[CropImage],
    frame: Frame,
    rules: Rules,
    lattice: Lattice,
    *,
    mask: list[CellGrid] | None,
    foreground: list[CellGrid] | None,
) -> tuple[Draws, list[object]]:
    assert rules.num_random is not None
    room = lattice.totals().astype(np.float64)
    weights = image_weights(images, rules.weights)
    allowed = None if mask is None else CellTable.of(mask)
    amounts = room if allowed is None else np.where(room > 0, allowed.counts, 0).astype(np.float64)
    bounds = image_bounds(weights, amounts, what="no image has room for a crop (after mask=, where= and weights=)")
    labelled: CellTable | None = None
    labelled_bounds: FloatArray | None = None
    if foreground is not None:
        reached = [_reached(cells, lattice, frame, image) for image, cells in enumerate(foreground)]
        labelled, every = CellTable.of(reached), sum(int(cells.chosen.sum()) for cells in foreground)
        if labelled.before[-1] < every and speaking_rank(os.environ) == 0:
            warnings.warn(
                f"{every - labelled.before[-1]} of {every} labelled places lie in no crop: crops of "
                f"{frame.extent.tolist()} begin {lattice.step[0].tolist()} apart. For all use a larger shape, or no "
                "align= and snap=",
                stacklevel=5,
            )
        found = np.where(room > 0, labelled.counts, 0).astype(np.float64)
        labelled_bounds = image_bounds(weights, found, what=_no_label(rules, images))
    draws = Draws(
        num_crops=rules.num_random,
        lattice=lattice,
        extent=frame.extent,
        bounds=bounds,
        neighbourhood=rules.neighbourhood,
        redraw=rules.redraw,
        allowed=allowed,
        foreground=labelled,
        foreground_bounds=labelled_bounds,
        fraction=0.0 if rules.foreground is None else rules.foreground.fraction,
    )
    edges = b"" if labelled_bounds is None else labelled_bounds.tobytes() + repr(draws.fraction).encode()
    return draws, [bounds.tobytes(), _table_bytes(allowed), _table_bytes(labelled), edges]


def _reached(cells: CellGrid, lattice: Lattice, frame: Frame, image: int) -> CellGrid:
    """Return the chosen cells whose centre is in a crop: starts may be further apart than a crop is long."""
    chosen = cells.chosen.copy()
    for axis, count in enumerate(chosen.shape):
        centres = cells.corner[axis] + (np.arange(count) + 0.5) * cells.size[axis]
        inside = np.clip(centres, 0, frame.sizes[image, axis] - 0.5)  # a coarse cell may reach beyond the image
        covered = lattice.covers(image, axis, inside, int(frame.extent[axis]))
        np.moveaxis(chosen, axis, 0)[~covered] = False
    return replace(cells, chosen=chosen)


def _no_label(rules: Rules, images: Sequence[CropImage]) -> str:
    wanted = rules.foreground
    assert wanted is not None
    classes = (
        "no element differs from 0" if wanted.classes is None else f"no element is of the classes {wanted.classes}"
    )
    place = images[0].level(wanted.part, wanted.level).array.place
    more = ", ..." if len(images) > 1 else ""
    return (
        f"foreground={wanted.part!r}: nothing is labelled where crops may be. Level {wanted.level} of the labels was "
        f"read ({place}{more}): {classes}"
    )


def _table_bytes(table: CellTable | None) -> bytes:
    return b"" if table is None else table.bits.packed.tobytes()


def _digest(
    takes: Mapping[str, Take], rules: Rules, layouts: Mapping[str, FieldLayout], parts: Sequence[object]
) -> str:
    digest = hashlib.sha256()
    for name, layout in layouts.items():
        digest.update(repr((name, takes[name].described(), layout.shape, layout.linked)).encode())
        digest.update("".join(array.fingerprint for array in layout.arrays).encode())
        if takes[name].normalise is not None and not isinstance(takes[name].normalise, Scaling):
            digest.update(repr([layout.field.scaling(array) for array in layout.arrays]).encode())
        digest.update(layout.ratio.tobytes() + layout.shift.tobytes() + layout.channels.tobytes())
    choices = (rules.shape, rules.num_random, rules.redraw, rules.neighbourhood, rules.align, rules.edges, rules.stride)
    digest.update(repr((*choices, "snap") if rules.snap else choices).encode())
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()[:16]
