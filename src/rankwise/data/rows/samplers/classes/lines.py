"""Lines of classes: where the rows of each lie, and whether they can be drawn from."""

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


__all__ = ["check_classes", "check_runs", "check_weights"]


def check_classes(classes: Any) -> Any:
    """Return the codes of a `pandas.Categorical`.

    Raises:
        TypeError: it is none.
        ConfigError: a row has no class.
    """
    import pandas as pd

    if not isinstance(classes, pd.Categorical):
        raise TypeError(
            f"classes must be a pandas.Categorical, such as obs['cell_type'].values or pd.Categorical(values); got "
            f"{type(classes).__name__}"
        )
    missing = int((classes.codes < 0).sum())
    if missing:
        raise ConfigError(f"classes contains {missing} NA values: give these rows a class, or leave them out")
    return classes.codes


def check_weights(class_weights: Any, classes: Any) -> FloatArray:
    """Return float64[classes], 1 for each where none are given.

    Raises:
        TypeError: they are a pandas.Series, whose order may be another.
        ConfigError: their number is another, one is no number, or none is positive.
    """
    import pandas as pd

    count = len(classes.categories)
    if class_weights is None:
        return np.ones(count)
    if isinstance(class_weights, pd.Series):
        raise TypeError(
            "class_weights must be an array in the order of classes.categories: pass "
            "class_weights.reindex(classes.categories).to_numpy() instead of a Series"
        )
    weights: FloatArray = np.array(class_weights, dtype=np.float64)
    if weights.shape != (count,):
        raise ConfigError(
            f"class_weights must have one weight per class in classes.categories, {count}; got {list(weights.shape)}"
        )
    if not np.isfinite(weights).all() or not (weights > 0).any():
        raise ConfigError(f"class_weights must be finite, and at least one positive; got {weights.tolist()}")
    return weights


def check_runs(codes: Any, weights: FloatArray, bounds: tuple[int, int], *, chunk_size: int, names: Any) -> None:
    """Refuse classes that lie in runs shorter than a chunk: each would cost a read of its own.

    Runs that the range cuts count whole: it is the store that decides.

    Raises:
        ConfigError: there are such.
    """
    edges = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]])
    inside = (edges[1:] > bounds[0]) & (edges[:-1] < bounds[1])
    of_run, lengths = codes[edges[:-1]], np.diff(edges)
    short = inside & (lengths < chunk_size) & (weights[of_run] > 0)
    if short.any():
        named = [names[code] for code in np.unique(of_run[short]).tolist()]
        raise ConfigError(
            f"every run of rows of one class must be at least chunk_size ({chunk_size}) long, but {int(short.sum())} "
            f"are shorter (classes {named}), the shortest {int(lengths[short].min())}: write the collection with "
            "groupby=, take a smaller chunk_size, or give these classes the weight 0"
        )
