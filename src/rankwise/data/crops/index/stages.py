"""What each epoch of an index is computed from: the index's own tables, or those of a stage of its curriculum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankwise.data.crops.index.compiling import Compiled, compile_rules
from rankwise.data.crops.index.finding import CellFinder
from rankwise.data.crops.index.image import CropImage
from rankwise.data.crops.index.rules import Curriculum, Rules, Stage
from rankwise.data.crops.index.take import Take
from rankwise.errors import ConfigError

__all__ = ["Stages"]

# A function of the epoch is known by its first answers.
_KNOWN_EPOCHS = 256


class Stages:
    """The tables of each epoch; those of a stage are made when it is first met, and kept.

    Args:
        images: the images.
        takes: the fields.
        rules: the choices.
        finder: makes maps of masks and labels.
        curriculum: what epochs change; None = nothing.

    Raises:
        ConfigError: the rules do not fit the images, or the curriculum is none or is for tiles.
    """

    def __init__(
        self,
        images: Sequence[CropImage],
        takes: Mapping[str, Take],
        rules: Rules,
        finder: CellFinder,
        curriculum: Curriculum | None,
    ) -> None:
        self._images = images
        self._takes = takes
        self._rules = rules
        self._finder = finder
        self.curriculum = _checked(curriculum, rules)
        self._made: dict[Stage, Compiled] = {}
        self.at(0)

    def at(self, epoch: int) -> Compiled:
        """Return the tables of an epoch."""
        stage = self._stage(epoch)
        if stage not in self._made:
            self._made[stage] = self._compiled(stage)
        return self._made[stage]

    def known(self) -> tuple[Compiled, ...]:
        """Return the tables of all stages that were met so far; a curriculum by epoch is known whole."""
        return tuple(self._made.values())

    def digest(self) -> str:
        """Return a hash of all that decides where crops lie, in any epoch."""
        if self.curriculum is None:
            return self.at(0).digest
        epochs = range(_KNOWN_EPOCHS) if callable(self.curriculum) else sorted(self.curriculum)
        digests = [self.at(epoch).digest for epoch in epochs]
        text = repr((None if callable(self.curriculum) else list(epochs), digests))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _stage(self, epoch: int) -> Stage:
        if self.curriculum is None:
            return Stage()
        if callable(self.curriculum):
            stage = self.curriculum(epoch)
            if not isinstance(stage, Stage):
                raise ConfigError(f"curriculum= returns a Stage, for epoch {epoch} it returned {stage!r:.80}")
            return stage
        begun = [first for first in self.curriculum if first <= epoch]
        return self.curriculum[max(begun)] if begun else Stage()

    def _compiled(self, stage: Stage) -> Compiled:
        rules = self._rules
        if stage.level is not None:
            rules = replace(rules, level=stage.level)
        if stage.shape is not None:
            rules = replace(rules, shape=tuple(stage.shape))
        if stage.foreground is not None:
            if rules.foreground is None:
                raise ConfigError("a stage changes the foreground's fraction, but the index has no foreground=")
            rules = replace(rules, foreground=replace(rules.foreground, fraction=stage.foreground))
        where = stage.where
        used = np.array([where is None or bool(where(image)) for image in self._images])
        return compile_rules(self._images, self._takes, rules, self._finder, used=used)


def _checked(curriculum: Curriculum | None, rules: Rules) -> Curriculum | None:
    if curriculum is None:
        return None
    if rules.num_random is None:
        raise ConfigError(
            "curriculum= is for random crops: tiles come exactly once per epoch, and their number may not change. Give "
            "num_random=, the crops of an epoch"
        )
    if callable(curriculum):
        return curriculum
    stages = dict(curriculum)
    if not stages or not all(isinstance(s, Stage) and isinstance(e, int) and e >= 0 for e, s in stages.items()):
        raise ConfigError(
            f"curriculum= maps epochs (from 0) to Stages, or is a function of the epoch; got {curriculum!r:.120}"
        )
    return stages
