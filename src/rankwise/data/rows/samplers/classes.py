"""Samplers that draw by class, and by weight."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from rankwise.data.contract import JSON, FloatArray, IntArray, whole_number
from rankwise.data.rows.abc import (
    PassDraws,
    Rng,
    check_mask,
    make_generator,
    mask_bounds,
)
from rankwise.data.rows.samplers.chunks import ChunkSampler
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassLines:
    """Location of the rows of the classes that can be drawn, as runs put in one line."""

    probabilities: FloatArray  # float64[C], probability of each class that can be drawn
    run_starts: IntArray  # int64[R], first rows of runs of neighbouring rows of one class, sorted by class
    run_places: IntArray  # int64[R + 1], start of each run in the line of all runs
    class_places: IntArray  # int64[C + 1], start of each class in that line

    @classmethod
    def build(cls, codes: Any, weights: FloatArray, start: int, stop: int) -> ClassLines:
        """Scan the rows of a range; classes with a weight of 0 or less are left out.

        Raises:
            ConfigError: no class in the range can be drawn.
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
            probabilities=chosen / chosen.sum(),
            run_starts=edges[:-1][kept] + start,
            run_places=run_places,
            class_places=np.append(run_places[first_runs], run_places[-1]),
        )

    def draw_classes(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw classes by their weights, int64[count], as places in `probabilities`."""
        drawn: IntArray = rng.choice(len(self.probabilities), size=count, p=self.probabilities)
        return drawn

    def draw_runs(self, rng: np.random.Generator, classes: IntArray, lengths: IntArray) -> list[slice]:
        """Draw a chunk of each class, a place in `probabilities`: neighbouring rows inside one of its runs.

        A run is drawn in proportion to its rows, and any of its rows may begin the chunk. A chunk that would exceed the
        run is moved to the run's end or beginning with equal probability: a row near an edge is in 0.5 to 1.5 times as
        many chunks as those in the middle, which are all equally likely. A run shorter than the chunk can only come
        from a mask; the chunk then continues in the class's next run, and after the last run in the first.
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


def check_weights(class_weights: Any, classes: Any) -> FloatArray:
    """Return float64[classes]; 1 for each class without weights.

    Raises:
        TypeError: they are a pandas.Series, whose order may differ.
        ConfigError: their number is wrong, one is not a number, or none is positive.
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
    """Refuse classes in runs shorter than a chunk: each run would need a read of its own.

    Runs that the range cuts count with all their rows in the store.

    Raises:
        ConfigError: there are such classes.
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
            "groupby=, use a smaller chunk_size, or set the weight of these classes to 0"
        )


_LOOK_ROWS = 1 << 16


class ClassSampler(ChunkSampler):
    """Draws batches of one class each, with replacement.

    For every lcm(chunk_size, batch_size) rows it draws a class by weight, then chunks of that class: chunk_size rows in
    sequence inside one run (the last chunk of a pass is shorter if num_samples is not a multiple). Runs are drawn in
    proportion to their rows, so rows are equally likely, except the first and last ``chunk_size - 1`` of a run, which
    appear 0.5 to 1.5 times as often. Classes should be in long runs on disk; write the collection with ``groupby=``.

    Args:
        chunk_size: rows that are read as one run.
        preload_nchunks: runs of one load request.
        batch_size: rows of a batch; divides chunk_size * preload_nchunks.
        classes: pandas.Categorical, the class of each row of the loader.
        num_samples: exact number of rows of a pass.
        class_weights: one for each of ``classes.categories``, 0 or less = never; None = all equal. The weights of the
            classes in the mask are scaled to a sum of 1.
        mask: the rows to use, a contiguous slice; None = all.
        drop_last: drop the last batch if it is not full.
        rng: generator or seed; None = other draws in every process.

    Raises:
        ConfigError: sizes, mask or weights do not fit, a row has no class, or runs of a class are shorter than a chunk.
        TypeError: `classes`, `class_weights` or `rng` have another type.
    """

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        classes: Any,
        num_samples: int,
        class_weights: Any = None,
        mask: slice | None = None,
        drop_last: bool = False,
        rng: Rng = None,
    ) -> None:
        import pandas as pd

        whole_number("num_samples", num_samples, least=1)
        super().__init__(
            chunk_size, preload_nchunks, batch_size, drop_last=drop_last, mask=mask, num_samples=num_samples
        )
        if not isinstance(classes, pd.Categorical):
            raise TypeError(
                f"classes must be a pandas.Categorical, such as obs['cell_type'].values or pd.Categorical(values); got "
                f"{type(classes).__name__}"
            )
        missing = int((classes.codes < 0).sum())
        if missing:
            raise ConfigError(f"classes contains {missing} NA values: give these rows a class, or exclude them")
        self._codes: Any = classes.codes
        self._names: Any = classes.categories
        self._weights = check_weights(class_weights, classes)
        self._rng, self._is_seeded = make_generator(rng), rng is not None
        self._num_open = 0
        self._lines: ClassLines | None = None
        self._take(self._mask)

    @property
    def mask(self) -> slice:
        """The range of rows to use; it cannot change during a pass."""
        return self._mask

    @mask.setter
    def mask(self, value: slice) -> None:
        if self._num_open and mask_bounds(value, len(self._codes)) != (self._mask.start, self._mask.stop):
            raise ConfigError(
                f"the mask cannot move to {value} while a pass is being iterated: finish or close its iterator first"
            )
        self._take(value)

    @property
    def shuffle(self) -> bool:
        """True."""
        return True

    def validate(self, n_obs: int) -> None:
        """Refuse a loader whose number of rows differs from the length of `classes`."""
        if n_obs != len(self._codes):
            raise ConfigError(
                f"classes length ({len(self._codes)}) does not match the {n_obs} rows of the loader: pass one class "
                "for each row, in the order of the datasets"
            )

    def can_draw(self, part: slice) -> bool:
        """Whether a range has rows of a class with positive weight."""
        codes = self._codes[part]
        starts = range(0, len(codes), _LOOK_ROWS)  # usually the first of them has one
        return any((self._weights[codes[start : start + _LOOK_ROWS]] > 0).any() for start in starts)

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return the settings that decide the batches of a pass; classes and weights as a hash."""
        return {**self._settings(), "num_samples": self._num_samples, "classes": self._classes_hash}

    @cached_property
    def _classes_hash(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self._codes).view(np.uint8).data)
        digest.update(self._weights.tobytes())
        return digest.hexdigest()[:16]

    def _take(self, mask: slice) -> None:
        bounds = mask_bounds(mask, len(self._codes))
        check_runs(self._codes, self._weights, bounds, chunk_size=self._chunk_size, names=self._names)
        lines = ClassLines.build(self._codes, self._weights, *bounds)
        self._mask, self._lines = slice(*bounds), lines

    def restrict(self, mask: slice) -> None:
        """Use a part of the mask for the next passes; runs that it cuts may be shorter than a chunk."""
        self._mask, self._lines = slice(*mask_bounds(check_mask(mask), len(self._codes))), None

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        if self._lines is None:
            self._lines = ClassLines.build(self._codes, self._weights, self._mask.start, self._mask.stop)
        lines, draws = self._lines, self._draws
        self._num_open += 1
        try:
            yield from self._requests(self._num_rows(n_obs), partial(self._request, draws, lines))
        finally:
            self._num_open -= 1

    def _request(self, draws: PassDraws, lines: ClassLines, number: int, wanted: int) -> LoadRequest:
        rng, size = draws.generator(request=number), self._chunk_size
        lengths = np.full(-(-wanted // size), size, dtype=np.int64)
        lengths[-1] = wanted - (len(lengths) - 1) * size
        runs = lines.draw_runs(rng, self._classes_of_chunks(lines, rng, len(lengths)), lengths)
        return {"requests": runs, "splits": self._splits(rng, wanted)}

    def _classes_of_chunks(self, lines: ClassLines, rng: np.random.Generator, count: int) -> IntArray:
        """Draw one class for as many chunks as needed until the edges of chunks and batches coincide again."""
        together = self.batch_size // math.gcd(self._chunk_size, self.batch_size)
        return np.repeat(lines.draw_classes(rng, -(-count // together)), together)[:count]

    def _splits(self, rng: np.random.Generator, wanted: int) -> list[IntArray]:
        return [rng.permutation(batch) for batch in self._batches(np.arange(wanted))]


class WeightedClassSampler(ClassSampler):
    """Draws chunks of one class each, as `ClassSampler` does, and mixes the rows of all chunks of a load request.

    Batches then have classes in proportion to their weights; more chunks per request are closer to it.
    """

    def _classes_of_chunks(self, lines: ClassLines, rng: np.random.Generator, count: int) -> IntArray:
        return lines.draw_classes(rng, count)

    def _splits(self, rng: np.random.Generator, wanted: int) -> list[IntArray]:
        return self._batches(rng.permutation(wanted))
