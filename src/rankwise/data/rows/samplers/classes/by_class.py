"""Samplers that draw by class, and by weight."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from rankwise.data.contract import JSON, IntArray
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.passes import (
    PassDraws,
    RequestSizes,
    check_mask,
    make_generator,
    mask_bounds,
    mask_settings,
)
from rankwise.data.rows.passes.draws import Rng
from rankwise.data.rows.samplers.classes.lines import ClassLines, check_classes, check_runs, check_weights
from rankwise.data.rows.samplers.requests import make_requests
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError

__all__ = ["ClassSampler"]

_LOOK_ROWS = 1 << 16


class ClassSampler(Sampler):
    """Draws batches of one class each, with replacement.

    A class is drawn by its weight for every lcm(chunk_size, batch_size) rows, then chunks of it: chunk_size rows side
    by side inside one run of the class (the last chunk of a pass is shorter where num_samples is no multiple). Runs are
    drawn by their rows, so every row is equally likely, but for the first and last ``chunk_size - 1`` of a run, which
    come 0.5 to 1.5 times as often. Classes should lie in long runs on disk; write the collection with ``groupby=``.

    Args:
        chunk_size: rows that are read as one run.
        preload_nchunks: runs of one load request.
        batch_size: rows of a batch; divides chunk_size * preload_nchunks.
        classes: pandas.Categorical, the class of each row of the loader.
        num_samples: rows of a pass, exactly.
        class_weights: one for each of ``classes.categories``, not above 0 = never; None = all alike. Those of the
            classes that the mask holds are scaled to sum up to 1.
        mask: the rows to take, a contiguous slice; None = all.
        drop_last: leave out the last batch if it is not full.
        rng: generator or seed; None = other draws in every process.

    Raises:
        ConfigError: sizes, mask or weights do not fit, a row has no class, or runs of a class are shorter than a chunk.
        TypeError: `classes`, `class_weights` or `rng` are of another kind.
    """

    handles_workers = True

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
        self._sizes = RequestSizes(chunk_size=chunk_size, preload_nchunks=preload_nchunks, batch_size=batch_size)
        if num_samples < 1:
            raise ConfigError(f"num_samples must be at least 1, got {num_samples}")
        self._num_samples, self._drop_last = num_samples, drop_last
        self._codes = check_classes(classes)
        self._names = classes.categories
        self._weights = check_weights(class_weights, classes)
        self._rng, self._is_seeded = make_generator(rng), rng is not None
        self._num_open = 0
        self._lines: ClassLines | None = None
        self._take(slice(0, None) if mask is None else mask)

    @property
    def mask(self) -> slice:
        """The range of rows that may be taken; it cannot be moved while a pass is under way."""
        return self._mask

    @mask.setter
    def mask(self, value: slice) -> None:
        if self._num_open and mask_bounds(value, len(self._codes)) != (self._mask.start, self._mask.stop):
            raise ConfigError(
                f"the mask cannot move to {value} while a pass is being iterated: finish or close its iterator first"
            )
        self._take(value)

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._sizes.batch_size

    @property
    def shuffle(self) -> bool:
        """True."""
        return True

    def n_batches(self, n_obs: int) -> int:  # noqa: ARG002
        """Return the number of batches of a pass: it follows from num_samples alone."""
        return self._sizes.num_batches(self._num_samples, drop_last=self._drop_last)

    def validate(self, n_obs: int) -> None:
        """Refuse a loader that has not one row for each entry of `classes`."""
        if n_obs != len(self._codes):
            raise ConfigError(
                f"classes length ({len(self._codes)}) does not match the {n_obs} rows of the loader: pass one class "
                "for each row, in the order of the datasets"
            )

    def can_draw(self, part: slice) -> bool:
        """Whether rows of a class of positive weight lie in a range."""
        codes = self._codes[part]
        starts = range(0, len(codes), _LOOK_ROWS)  # the first of them most often has one
        return any((self._weights[codes[start : start + _LOOK_ROWS]] > 0).any() for start in starts)

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return what decides the batches of a pass; of classes and weights a hash."""
        return {
            "kind": type(self).__name__,
            **asdict(self._sizes),
            "num_samples": self._num_samples,
            "drop_last": self._drop_last,
            "mask": mask_settings(self._mask),
            "classes": self._classes_hash,
        }

    @cached_property
    def _classes_hash(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self._codes).view(np.uint8).data)
        digest.update(self._weights.tobytes())
        return digest.hexdigest()[:16]

    def _take(self, mask: slice) -> None:
        bounds = mask_bounds(mask, len(self._codes))
        check_runs(self._codes, self._weights, bounds, chunk_size=self._sizes.chunk_size, names=self._names)
        lines = ClassLines.build(self._codes, self._weights, *bounds)
        self._mask, self._lines = slice(*bounds), lines

    def restrict(self, mask: slice) -> None:
        """Take a part of the mask for the passes that begin now; runs that it cuts may be shorter than a chunk."""
        self._mask, self._lines = slice(*mask_bounds(check_mask(mask), len(self._codes))), None

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:  # noqa: ARG002
        if self._lines is None:
            self._lines = ClassLines.build(self._codes, self._weights, self._mask.start, self._mask.stop)
        lines, draws = self._lines, self._draws
        total = self._sizes.num_rows(self._num_samples, drop_last=self._drop_last)
        self._num_open += 1
        try:
            yield from make_requests(
                total, self._sizes, lambda number, wanted: self._request(draws, lines, number, wanted)
            )
        finally:
            self._num_open -= 1

    def _request(self, draws: PassDraws, lines: ClassLines, number: int, wanted: int) -> LoadRequest:
        rng = draws.request(number)
        lengths = self._lengths(wanted)
        runs = lines.draw_runs(rng, self._classes_of_chunks(lines, rng, len(lengths)), lengths)
        return {"requests": runs, "splits": self._splits(rng, wanted)}

    def _lengths(self, wanted: int) -> IntArray:
        size = self._sizes.chunk_size
        lengths = np.full(-(-wanted // size), size, dtype=np.int64)
        lengths[-1] = wanted - (len(lengths) - 1) * size
        return lengths

    def _classes_of_chunks(self, lines: ClassLines, rng: np.random.Generator, count: int) -> IntArray:
        """One class for as many chunks as it takes until the edges of chunks and batches meet again."""
        together = self.batch_size // math.gcd(self._sizes.chunk_size, self.batch_size)
        return np.repeat(lines.draw_classes(rng, -(-count // together)), together)[:count]

    def _splits(self, rng: np.random.Generator, wanted: int) -> list[IntArray]:
        return [rng.permutation(batch) for batch in self._sizes.cut(np.arange(wanted))]


__all__ = ["WeightedClassSampler"]


class WeightedClassSampler(ClassSampler):
    """Draws chunks of one class each, as `ClassSampler` does, and mixes the rows of all chunks of a load request.

    Batches then hold classes in proportion to their weights; the more chunks a request has, the closer.
    """

    def _classes_of_chunks(self, lines: ClassLines, rng: np.random.Generator, count: int) -> IntArray:
        return lines.draw_classes(rng, count)

    def _splits(self, rng: np.random.Generator, wanted: int) -> list[IntArray]:
        return self._sizes.cut(rng.permutation(wanted))
