"""`ClassLines`: the rows of each class, put one behind the other in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import FloatArray, IntArray
from rankwise.errors import ConfigError

__all__ = ["ClassLines"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassLines:
    """Where the rows of the classes that can be drawn lie.

    Attributes:
        codes: int64[C], the classes that can be drawn.
        probabilities: float64[C], how likely each is.
        run_starts: int64[R], first rows of runs of neighbouring rows of one class, sorted by class.
        run_places: int64[R + 1], where each run begins in the line of all runs.
        class_places: int64[C + 1], where each class begins in that line.
    """

    codes: IntArray
    probabilities: FloatArray
    run_starts: IntArray
    run_places: IntArray
    class_places: IntArray

    @classmethod
    def build(cls, codes: Any, weights: FloatArray, start: int, stop: int) -> ClassLines:
        """Look at the rows of a range.

        Args:
            codes: whole numbers [n], the class of each row.
            weights: float64[classes]; classes of weight 0 or less are left out.
            start: first row of the range.
            stop: row after the last.

        Raises:
            ConfigError: no class of the range can be drawn.
        """
        held = np.asarray(codes[start:stop])
        edges = np.concatenate([[0], np.flatnonzero(np.diff(held)) + 1, [len(held)]])
        of_run, lengths = held[edges[:-1]], np.diff(edges)
        kept = np.flatnonzero(weights[of_run] > 0)
        kept = kept[np.argsort(of_run[kept], kind="stable")]
        if not len(kept):
            raise ConfigError(
                f"no class of positive weight has rows in the range [{start}, {stop}): change the mask or the weights"
            )
        run_places = np.concatenate([[0], np.cumsum(lengths[kept], dtype=np.int64)])
        present, first_runs = np.unique(of_run[kept], return_index=True)
        chosen = weights[present]
        return cls(
            codes=present.astype(np.int64),
            probabilities=chosen / chosen.sum(),
            run_starts=edges[:-1][kept] + start,
            run_places=run_places,
            class_places=np.append(run_places[first_runs], run_places[-1]),
        )

    def draw_classes(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw classes by their weights, int64[count], as places in `codes`."""
        drawn: IntArray = rng.choice(len(self.codes), size=count, p=self.probabilities)
        return drawn

    def draw_runs(self, rng: np.random.Generator, classes: IntArray, lengths: IntArray) -> list[slice]:
        """Draw a chunk of each class: neighbouring rows inside one of its runs.

        A run is drawn by its rows, and any of them begins the chunk. Where it would then reach beyond the run it is
        moved, to the run's end or its beginning alike: a row near an edge is in 0.5 to 1.5 times as many chunks as
        those in the middle, which are all equally likely. In a run that is shorter than the chunk, which only a mask
        can make, it goes on in the class's next run, and in the first after the last.

        Args:
            rng: where numbers come from.
            classes: int64[n], places in `codes`.
            lengths: int64[n], rows of each chunk.
        """
        first = rng.integers(self.class_places[classes], self.class_places[classes + 1])
        at_end = rng.random(len(first)) < 0.5
        run = np.searchsorted(self.run_places, first, side="right") - 1
        begin, end = self.run_places[run], self.run_places[run + 1]
        whole = end - begin >= lengths
        first = np.where(whole & (first + lengths > end), np.where(at_end, end - lengths, begin), first)
        starts = self.run_starts[run] + first - begin
        drawn: list[slice] = []
        listed = zip(classes.tolist(), first.tolist(), starts.tolist(), lengths.tolist(), whole.tolist(), strict=True)
        for which, place, start, length, is_whole in listed:
            drawn += [slice(start, start + length)] if is_whole else self._walk(which, place, length)
        return drawn

    def _walk(self, which: int, place: int, length: int) -> list[slice]:
        first, end = int(self.class_places[which]), int(self.class_places[which + 1])
        taken = []
        while length > 0:
            run = int(np.searchsorted(self.run_places, place, side="right")) - 1
            count = min(length, int(self.run_places[run + 1]) - place)
            start = int(self.run_starts[run]) + place - int(self.run_places[run])
            taken.append(slice(start, start + count))
            length, place = length - count, place + count
            place = first if place == end else place
        return taken
