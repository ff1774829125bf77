"""`WeightedClassSampler`: batches whose mixture of classes follows weights."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.samplers.classes.by_class import ClassSampler
from rankwise.data.rows.samplers.classes.lines import ClassLines

__all__ = ["WeightedClassSampler"]


class WeightedClassSampler(ClassSampler):
    """Draws chunks of one class each, as `ClassSampler` does, and mixes the rows of all chunks of a load request.

    Batches then hold classes in proportion to their weights; the more chunks a request has, the closer.
    """

    def _classes_of_chunks(self, lines: ClassLines, rng: np.random.Generator, count: int) -> IntArray:
        return lines.draw_classes(rng, count)

    def _splits(self, rng: np.random.Generator, wanted: int) -> list[IntArray]:
        return self._sizes.cut(rng.permutation(wanted))
