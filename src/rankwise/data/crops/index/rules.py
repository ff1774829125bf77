"""The rules of an index: validated values, without any data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypeAlias

from rankwise.data.contract import NDArray, whole_number
from rankwise.data.crops.index.image import CropImage, Take, plain_extents
from rankwise.data.crops.index.lattice import Edges
from rankwise.data.store.boxes import Pad
from rankwise.errors import ConfigError

Weights: TypeAlias = Literal["equal"] | Sequence[float] | Mapping[str, float] | Callable[[CropImage], float]


@dataclass(frozen=True, slots=True)
class Foreground:
    """Which random crops are drawn around labelled elements.

    Attributes:
        part: the part of the images with labels, for example "label".
        fraction: fraction of the crops, 0 to 1.
        classes: the labels that count; None = all but 0.
        level: the level of the labels to read, 0 is the finest. A coarser one is read faster, but may lack
            small objects, especially if levels were made by striding.
    """

    part: str
    fraction: float
    classes: tuple[int, ...] | None = None
    level: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _share("a foreground's fraction", self.fraction))
        if isinstance(self.classes, Iterable):  # a list or an array would have no hash
            object.__setattr__(self, "classes", tuple(int(label) for label in self.classes))

    @classmethod
    def of(cls, given: Foreground | tuple[str, float] | None) -> Foreground | None:
        """Return what the argument of an index means, which may be a pair of part and fraction."""
        if given is None or isinstance(given, Foreground):
            return given
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ConfigError(
                f"foreground= must be (part, fraction), such as ('label', 0.3), or Foreground; got {given!r}"
            )
        return cls(*given)


@dataclass(frozen=True, slots=True)
class Mask:
    """Where crops may be: the centre of random crops must be in it; tiles must overlap it.

    Attributes:
        source: a part of the images (anything but 0 is allowed), or a function that returns an array for an image,
            which covers it along the cropped axes at any resolution; None from it allows all.
        share: for tiles: the smallest fraction inside the mask; 0 = any overlap.
        level: for a part: the level to read, 0 is the finest; see `Foreground`.
    """

    source: str | Callable[[CropImage], NDArray | None]
    share: float = 0.0
    level: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) and not callable(self.source):
            raise ConfigError(
                "mask= must be the name of a part of the images, a function of an image that returns an array, or a "
                f"Mask of one of these; got a {type(self.source).__name__}"
            )
        object.__setattr__(self, "share", _share("a mask's share", self.share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Changes by a curriculum; None keeps the index's value.

    Attributes:
        level: level of the reference.
        shape: shape of the crops; batches of such epochs then have another shape.
        foreground: fraction of crops around labelled elements.
        where: selects the images of crops.
    """

    level: int | None = None
    shape: tuple[int | None, ...] | None = None
    foreground: float | None = None
    where: Callable[[CropImage], bool] | None = None

    def __post_init__(self) -> None:
        if self.foreground is not None:
            object.__setattr__(self, "foreground", _share("a stage's foreground", self.foreground))
        if self.shape is not None:
            object.__setattr__(self, "shape", plain_extents("shape", self.shape))


Curriculum: TypeAlias = Mapping[int, Stage] | Callable[[int], Stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules for placing the crops of an index; the arguments of `CropIndex`, which describes them.

    Raises:
        ConfigError: a value is out of range, or contradicts another one.
    """

    shape: tuple[int | None, ...]
    level: int = 0
    stride: tuple[int, ...] | None = None
    edges: Edges = "shift"
    num_random: int | None = None
    redraw: bool = True
    weights: Weights | None = None
    mask: Mask | None = None
    foreground: Foreground | None = None
    neighbourhood: int = 1
    align: Literal["chunk"] | None = None
    snap: bool = False
    pad: Pad | None = None
    region_bytes: int | None = None
    curriculum: Curriculum | None = None

    def __post_init__(self) -> None:
        if self.align not in (None, "chunk"):
            raise ConfigError(f'align must be "chunk" or None, got {self.align!r}')
        for name in ("num_random", "neighbourhood", "region_bytes"):
            value = getattr(self, name)
            if value is not None:  # NumPy's numbers would give the index another fingerprint
                object.__setattr__(self, name, whole_number(name, value, least=1))
        weights = self.weights
        if isinstance(weights, Iterable) and not isinstance(weights, str | Mapping) and not callable(weights):
            object.__setattr__(self, "weights", tuple(float(weight) for weight in weights))
        stride = self.stride
        if stride is not None and (len(stride) != len(self.shape) or not all(step and step >= 1 for step in stride)):
            raise ConfigError(
                f"stride needs one step of at least 1 for each of the {len(self.shape)} extents of shape, got "
                f"{self.stride}"
            )
        if self.num_random is None:
            self._refuse_for_tiles()
        else:
            self._refuse_for_random()
        _check_curriculum(self.curriculum)

    def parts_of(self, fields: Mapping[str, Take] | Sequence[str] | None) -> set[str]:
        """Return all parts of images that the rules and the given fields name; label images are searched for these."""
        takes = fields if isinstance(fields, Mapping) else dict.fromkeys(fields or (), Take())
        names = {take.part or name for name, take in takes.items() if isinstance(take, Take)}
        if self.foreground is not None:
            names.add(self.foreground.part)
        if self.mask is not None and isinstance(self.mask.source, str):
            names.add(self.mask.source)
        return names

    def stage(self, epoch: int) -> Stage:
        """Return the stage of an epoch: from the curriculum, else one without changes.

        Raises:
            ConfigError: the curriculum, a function, returned something else.
        """
        if callable(self.curriculum):
            stage = self.curriculum(epoch)
            if not isinstance(stage, Stage):
                raise ConfigError(f"curriculum= must return a Stage, but for epoch {epoch} it returned {stage!r:.80}")
            return stage
        stages = self.curriculum or {}
        begun = [first for first in stages if first <= epoch]
        return stages[max(begun)] if begun else Stage()

    def of_stage(self, stage: Stage) -> Rules:
        """Return the rules with the changes of a stage, except for its choice of images.

        Raises:
            ConfigError: it changes the fraction of a foreground that the index does not have.
        """
        foreground = self.foreground
        if stage.foreground is not None:
            if foreground is None:
                raise ConfigError("a stage changes the foreground's fraction, but the index has no foreground=")
            foreground = replace(foreground, fraction=stage.foreground)
        return replace(
            self,
            level=self.level if stage.level is None else stage.level,
            shape=self.shape if stage.shape is None else stage.shape,
            foreground=foreground,
        )

    def _refuse_for_tiles(self) -> None:
        if self.curriculum is not None:
            raise ConfigError(
                "curriculum= is for random crops: tiles come exactly once per epoch, and their number may not change. "
                "Use num_random=, the crops of an epoch"
            )
        given: dict[str, Any] = {
            "weights": self.weights,
            "foreground": self.foreground,
            "neighbourhood": None if self.neighbourhood == 1 else self.neighbourhood,
            "redraw": None if self.redraw else False,
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"{name}= is for random crops: tiles come exactly once per epoch, all of them. Give num_random=, "
                    "the crops of an epoch, or select tiles with mask= or where="
                )

    def _refuse_for_random(self) -> None:
        given = {"stride": self.stride, "edges": None if self.edges == "shift" else self.edges}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name}= is for tiles, but num_random={self.num_random} requests random crops")
        if self.mask is not None and self.mask.share:
            raise ConfigError("a mask's share is for tiles: random crops have their centre in the mask")


def _check_curriculum(curriculum: Curriculum | None) -> None:
    if curriculum is None or callable(curriculum):
        return
    items = curriculum.items() if isinstance(curriculum, Mapping) else ()
    if not items or not all(isinstance(s, Stage) and isinstance(e, int) and e >= 0 for e, s in items):
        raise ConfigError(
            f"curriculum= must map epochs (from 0) to Stages, or be a function of the epoch; got {curriculum!r:.120}"
        )


def _share(name: str, value: float) -> float:
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a fraction from 0 to 1, got {value!r}")
    return float(value)
