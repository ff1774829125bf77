"""`CropIndex`: numbers every crop of a catalogue of images, without a list of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, overload

import numpy as np

from rankwise.data.contract import BaseSamples, FieldSpec, IntArray, Locality, NDArray
from rankwise.data.contract.values import short_hash
from rankwise.data.crops.fields import column_specs
from rankwise.data.crops.index.cells import CellFinder
from rankwise.data.crops.index.compiled import Compiled, compile_rules
from rankwise.data.crops.index.image import CropImage, Take, image_columns, named_takes, plain_extents
from rankwise.data.crops.index.inputs import By, Images, gather_images, make_together, split_images
from rankwise.data.crops.index.lattice import Edges
from rankwise.data.crops.index.places import Places, Tiles, region_elements
from rankwise.data.crops.index.rules import Curriculum, Foreground, Mask, Rules, Weights
from rankwise.data.order import Groups, SplitRule
from rankwise.data.store.boxes import Pad
from rankwise.errors import ConfigError
from rankwise.world import World

# Limit for the decoded regions of all lanes together: the default cache size of a rank.
_LANES_BYTES = 256 << 20
_LEAST_LANES, _MOST_LANES = 4, 64
# A rank rarely takes more crops of a step; then each rank has a lane of its own.
_CROPS_PER_RANK = 8
# A curriculum function is identified by its answers for the first epochs.
_KNOWN_EPOCHS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CropPlace:
    """The origin of a crop.

    Attributes:
        image: the image.
        start: first element along each axis of its reference array.
        stop: element after the last one; beyond the array if the crop is padded.
        axes: names of the axes.
        array: place of the reference array.
    """

    image: CropImage
    start: tuple[int, ...]
    stop: tuple[int, ...]
    axes: tuple[str, ...]
    array: str


@dataclass(frozen=True, kw_only=True)
class _CropLocality(Locality):
    """Locality of crops that are read from regions, or from neighbourhoods of several crops."""

    chunk_bytes: int
    neighbourhood: int

    def layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return as many lanes as the cache has room for regions, at least one for 8 crops of a batch, from 4 to 64.

        With neighbourhoods, so few that a batch takes the crops of one together. None leaves the choice to the order.
        """
        if self.neighbourhood > 1:
            return max(1, batch_size // self.neighbourhood), 1
        if self.chunk_samples == 1:
            return None, None
        lanes = max(_LANES_BYTES // self.chunk_bytes, batch_size // _CROPS_PER_RANK)
        return int(np.clip(lanes, _LEAST_LANES, _MOST_LANES)), None


class CropIndex(BaseSamples):
    """All crops of a catalogue of images: a grid of tiles, or new random crops in each epoch.

    A crop is a number. Its place is computed from the number (and from seed and epoch, for random ones), so an index
    over 10^8 crops needs no list, and an `Order` over it is shuffled, sharded and resumed like any other.

    Args:
        images: URIs (an array, an OME-Zarr image, plate or series, a folder of stores, a catalogue file), a
            `Catalogue`, opened images or arrays, mappings of parts to arrays (``{"image": uri, "label": uri}``, one
            image each), `CropImage`s, or several of these.
        shape: extents of a crop along the last axes of the reference that are not channels (None = a whole axis).
            Further axes before them (time) are stepped through, channels are taken whole; one extent per axis crops
            all axes.
        fields: name -> `Take`: the fields of a crop; the first is the reference, and is float32 unless
            its `Take` has another dtype, as in `Config`. None = every given part; a list of names = those
            parts ("image", names of label images).
        level: resolution level of the reference, 0 is the finest.
        stride: distance between tiles; None = `shape`, adjacent tiles.
        edges: how to treat a last tile that would extend beyond the image: "shift" moves it inside, "pad" pads it,
            "drop" leaves it out.
        num_random: number of random crops per epoch, instead of tiles.
        redraw: whether each epoch draws other random crops; False for validation.
        weights: probability of each image: "equal", numbers, a mapping by name, a function of the image; None =
            all places for crops are equally likely.
        where: images to use, a function of the image.
        mask: where crops may be: a part of the images, a function of an image that returns an array, or a `Mask`.
        foreground: ``(part, fraction)`` or a `Foreground`: this fraction of random crops is drawn around a labelled
            element. The label maps are made here, by reading the labels once.
        neighbourhood: this many random crops of one region follow each other in a lane of the order and share chunks.
        align: "chunk" makes crops start at chunk edges (random ones also at the end of an axis).
        snap: let crops start only where the boxes of all fields start at a whole element: at even places
            for labels of half the resolution. Otherwise boxes are rounded, and are off by up to half an element.
        curriculum: changes by epoch: ``{0: Stage(...), 10: Stage(...)}`` (from that epoch on), or a pure function
            of the epoch. For random crops.
        labels: name -> function of an image: further fields, with numbers for the image of a crop.
        pad: how to fill elements outside, for fields whose `Take` does not say; "fill" if `edges` is "pad".
        region_bytes: decoded bytes of tiles that are read together; None derives it from a crop.
        maps: folder for maps of labels and masks, to be used by later processes; None = memory of this process only.
        root: folder or URL; arrays are named by their paths below it; None = the last part of the path alone.
        world: with a world of several ranks, only the main rank opens the images, calls `where` and reads labels
            and masks; the others receive the results; every rank makes the index. None = each rank by itself.

    Attributes:
        images: the images.
        takes: the fields.
        rules: the choices.

    Raises:
        ConfigError: arguments do not fit each other or the images, or no crop is left.
        DataError: an array cannot be read.
        DesyncError: with `world`: the main rank could not make the index, or the ranks' indexes differ.
    """

    def __init__(
        self,
        images: Images,
        *,
        shape: Sequence[int | None],
        fields: Mapping[str, Take] | Sequence[str] | None = None,
        level: int = 0,
        stride: Sequence[int] | None = None,
        edges: Edges = "shift",
        num_random: int | None = None,
        redraw: bool = True,
        weights: Weights | None = None,
        where: Callable[[CropImage], bool] | None = None,
        mask: Mask | str | Callable[[CropImage], Any] | None = None,
        foreground: Foreground | tuple[str, float] | None = None,
        neighbourhood: int = 1,
        align: Literal["chunk"] | None = None,
        snap: bool = False,
        curriculum: Curriculum | None = None,
        labels: Mapping[str, Callable[[CropImage], Any]] | None = None,
        pad: Pad | None = None,
        region_bytes: int | None = None,
        maps: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        world: World | None = None,
    ) -> None:
        rules = Rules(
            shape=plain_extents("shape", shape),
            stride=None if stride is None else plain_extents("stride", stride),
            mask=mask if mask is None or isinstance(mask, Mask) else Mask(mask),
            foreground=Foreground.of(foreground),
            pad="fill" if edges == "pad" and pad is None else pad,
            curriculum=dict(curriculum) if isinstance(curriculum, Mapping) else curriculum,
            level=level,
            edges=edges,
            num_random=num_random,
            redraw=redraw,
            weights=weights,
            neighbourhood=neighbourhood,
            align=align,
            snap=snap,
            region_bytes=region_bytes,
        )
        self._finder = CellFinder(maps)

        def gathered() -> tuple[CropImage, ...]:
            return gather_images(images, labels=rules.parts_of(fields), root=root, where=where)

        def build(chosen: tuple[CropImage, ...]) -> str:
            takes = named_takes(fields, chosen[0], rules.pad)
            self._set(chosen, takes, rules, image_columns(chosen, labels or {}))
            return self.fingerprint

        if world is None or world.world_size == 1:
            build(gathered())
        else:
            make_together(world, self._finder, gathered, build)

    def _set(
        self,
        images: tuple[CropImage, ...],
        takes: Mapping[str, Take],
        rules: Rules,
        columns: Mapping[str, NDArray],
    ) -> None:
        self.images = images
        self.takes = takes
        self.rules = rules
        self.columns = columns
        self._by_epoch: dict[int, Compiled] = {}
        self._by_stage: dict[object, Compiled] = {}
        twice = self.compiled(0).specs.keys() & columns.keys()
        if twice:
            raise ConfigError(f"labels={min(twice)!r} has the name of a field or of its mask: rename it")
        facts = (repr((name, col.dtype.str, col.shape)).encode() + col.tobytes() for name, col in columns.items())
        self.fingerprint = short_hash((self._compiled_digest(), short_hash(b"".join(facts))))

    def _compiled_digest(self) -> str:
        """Return a hash of all that decides the places of crops, in any epoch; compiles the stages of a curriculum."""
        first, curriculum = self.compiled(0).digest, self.rules.curriculum
        if curriculum is None:
            return first
        epochs = range(_KNOWN_EPOCHS) if callable(curriculum) else sorted(curriculum)
        digests = [self.compiled(epoch).digest for epoch in epochs]
        return short_hash((None if callable(curriculum) else list(epochs), digests))

    @property
    def num_samples(self) -> int:
        """Number of crops of an epoch."""
        return self.compiled(0).placement.num_crops

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        kind = "tiles" if self.rules.num_random is None else "random crops"
        fields = ", ".join(f"{name} {list(spec.shape)} {spec.dtype}" for name, spec in self.fields.items())
        return f"CropIndex({self.num_samples} {kind} of {len(self.images)} images: {fields})"

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """The fields of a crop by name, as in the first epoch."""
        return MappingProxyType({**self.compiled(0).specs, **column_specs(self.columns)})

    @property
    def chunk_samples(self) -> int:
        """Number of neighbouring crops that are read from one region."""
        placement = self.compiled(0).placement
        return placement.block_crops if isinstance(placement, Tiles) else self.rules.neighbourhood

    @property
    def chunk_bytes(self) -> int:
        """Approximate decoded bytes of such a region."""
        made = self.compiled(0)
        if isinstance(made.placement, Tiles):
            block, stride = made.placement.block, made.placement.lattice.step[0]
        else:
            block = np.where((made.frame.extent > 1) & (self.rules.neighbourhood > 1), 2, 1)
            stride = np.maximum(made.frame.extent // 2, 1)
        elements = region_elements(block, extent=made.frame.extent, stride=stride, chunks=made.frame.chunks[0])
        return max(1, int(elements * made.element_bytes))

    @property
    def locality(self) -> Locality:
        """What neighbouring crops share, and suitable lanes and windows for an order over them."""
        near = self.rules.neighbourhood
        return _CropLocality(chunk_samples=self.chunk_samples, chunk_bytes=self.chunk_bytes, neighbourhood=near)

    def compiled(self, epoch: int) -> Compiled:
        """Return the tables from which the crops of an epoch are computed; equal stages share theirs."""
        if epoch not in self._by_epoch:
            stage = self.rules.stage(epoch)
            used = np.array([stage.where is None or bool(stage.where(image)) for image in self.images])
            # by the images that `where` chooses: a curriculum may make another function for each epoch
            key = (stage.level, stage.shape, stage.foreground, used.tobytes())
            if key not in self._by_stage:
                rules = self.rules.of_stage(stage)
                self._by_stage[key] = compile_rules(self.images, self.takes, rules, self._finder, used=used)
            self._by_epoch[epoch] = self._by_stage[key]
        return self._by_epoch[epoch]

    @property
    def stages(self) -> tuple[Compiled, ...]:
        """The tables of all stages used so far; for a curriculum given by epochs, of all stages."""
        return tuple(self._by_stage.values())

    def places(self, ids: IntArray, *, seed: int, epoch: int = 0) -> Places:
        """Return the places of crops.

        Args:
            ids: int64[B], numbers of crops.
            seed: seed of the order; ignored for tiles.
            epoch: epoch, from 0.

        Raises:
            IndexError: there is no such crop.
        """
        ids = np.asarray(ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.num_samples):
            raise IndexError(f"the index has {self.num_samples} crops, but crops {ids.min()} to {ids.max()} are wanted")
        return self.compiled(epoch).placement.places(ids, seed=seed, epoch=epoch)

    def describe(self, ids: IntArray, *, seed: int, epoch: int = 0) -> tuple[CropPlace, ...]:
        """Return the images and boxes of crops, for inspection; arguments as for `places`."""
        made, found = self.compiled(epoch), self.places(ids, seed=seed, epoch=epoch)
        return tuple(
            CropPlace(
                image=self.images[image],
                start=tuple(start),
                stop=tuple((np.array(start) + made.frame.extent).tolist()),
                axes=made.frame.axes,
                array=made.frame.levels[image].array.place,
            )
            for image, start in zip(found.images.tolist(), found.starts.tolist(), strict=True)
        )

    def of_images(self, numbers: Sequence[int]) -> CropIndex:
        """Return the index over some of the images only, with the same rules.

        Raises:
            ConfigError: there are none, or no crop is left.
        """
        if not len(numbers):
            raise ConfigError("an index needs at least one image, got none")
        rules = self.rules
        if isinstance(rules.weights, tuple):
            rules = replace(rules, weights=tuple(rules.weights[number] for number in numbers))
        chosen = object.__new__(type(self))
        chosen._finder = self._finder
        images = tuple(self.images[number] for number in numbers)
        columns = {name: values[list(numbers)] for name, values in self.columns.items()}
        chosen._set(images, self.takes, rules, columns)
        return chosen

    @overload
    def split(
        self, *, by: By, fractions: Mapping[str, float] | None = ..., groups: Groups | None = ...,
        exact: bool = ..., stratify: By | None = ..., seed: int = ...,
    ) -> dict[str, CropIndex]: ...  # fmt: skip
    @overload
    def split(
        self, *, by: By, fractions: Sequence[float], groups: None = ...,
        exact: bool = ..., stratify: By | None = ..., seed: int = ...,
    ) -> tuple[CropIndex, ...]: ...  # fmt: skip
    def split(
        self,
        *,
        by: By,
        fractions: Mapping[str, float] | Sequence[float] | None = None,
        groups: Groups | None = None,
        exact: bool = False,
        stratify: By | None = None,
        seed: int = 1889,
    ) -> dict[str, CropIndex] | tuple[CropIndex, ...]:
        """Return indexes over parts of the images, the same on every rank.

        By default a hash of its plate, well or name decides the part of an image: images that are added later do not
        move old ones, but part sizes match the request only on average. The sizes are logged, with a warning if they
        are far off; with few images they mostly are: use `exact` or `groups` then.

        Args:
            by: what stays together: "plate", "well" (of a plate), "array" (the image), or a function of the image.
            fractions: sizes of the parts, ``{"train": 0.8, "val": 0.2}`` or ``(0.8, 0.2)``, with a sum of at most 1.
                With `groups`, of the remaining groups.
            groups: names for a part, as returned by `by`: ``{"val": ["image 3.zarr"]}``. `fractions` divides all groups
                that no list names; without it they are ``"train"``, or the part with ``...`` instead of a list.
            exact: count the groups, in the order of their hashes, so that each part has its fraction of their number,
                rounded. Images that are added later may then move others.
            stratify: like `by`; each part gets its exact fraction of the groups of each stratum. All images of a
                group must be in one stratum.
            seed: another seed gives another split.

        Returns:
            The parts, by name or in order.

        Raises:
            ConfigError: an image has no plate or well, names are not unique, a group does not exist or is in several
                strata, or a part is empty.
        """
        rule = SplitRule.of(fractions, groups, exact=exact or stratify is not None, seed=seed)
        parts = split_images(self.images, by=by, rule=rule, stratify=stratify)
        return rule.handed_out([self.of_images(part) for part in parts])
