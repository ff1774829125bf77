"""`RandomSampler` and `SequentialSampler`: runs of neighbouring rows, shuffled or in order, as load requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import JSON, IntArray, whole_number
from rankwise.data.rows.abc import PassDraws, Rng, Sampler, check_mask, make_generator, mask_bounds
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError


def _circle(first: int, length: int, start: int, stop: int) -> list[slice]:
    """Return a run of rows from `first` on that wraps from `stop` to `start`, as often as needed."""
    runs = []
    while length > 0:
        taken = min(length, stop - first)
        runs.append(slice(first, first + taken))
        first, length = start, length - taken
    return runs


class ChunkSampler(Sampler):
    """Cuts the range into chunks of neighbouring rows and takes several of them in each load request."""

    handles_workers = True

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        drop_last: bool = False,
        mask: slice | None = None,
        num_samples: int | None = None,
    ) -> None:
        self._sizes = {"chunk_size": chunk_size, "preload_nchunks": preload_nchunks, "batch_size": batch_size}
        for name, size in self._sizes.items():
            whole_number(name, size, least=1)
        self._request_rows = rows = chunk_size * preload_nchunks
        product = f"{chunk_size} * {preload_nchunks} = {rows}"
        if batch_size > rows:
            raise ConfigError(
                f"batch_size cannot exceed chunk_size * preload_nchunks: got {batch_size}, but a request has {product} "
                f"rows; use preload_nchunks={-(-batch_size // chunk_size)} or more"
            )
        if rows % batch_size:
            nearest = min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(n - batch_size))
            raise ConfigError(
                f"chunk_size * preload_nchunks must be divisible by batch_size: a request has {product} rows, which "
                f"leaves {rows % batch_size} after batches of {batch_size}; use batch_size={nearest}, or other sizes"
            )
        self._chunk_size, self._batch_size = chunk_size, batch_size
        self._drop_last, self._num_samples = drop_last, num_samples
        self._mask = check_mask(slice(0, None) if mask is None else mask)

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._batch_size

    def n_batches(self, n_obs: int) -> int:
        """Return the number of batches of a pass over a loader of `n_obs` rows."""
        return -(-self._num_rows(n_obs) // self._batch_size)

    def validate(self, n_obs: int) -> None:
        """Refuse a mask that does not fit `n_obs` rows."""
        mask_bounds(self._mask, n_obs)

    def _asked(self, n_obs: int) -> int:
        if self._num_samples is not None:
            return self._num_samples
        start, stop = mask_bounds(self._mask, n_obs)
        return stop - start

    def _num_rows(self, n_obs: int) -> int:
        """Return the rows that a pass yields."""
        asked = self._asked(n_obs)
        return asked - asked % self._batch_size if self._drop_last else asked

    def _settings(self) -> dict[str, JSON]:
        said: dict[str, JSON] = {"kind": type(self).__name__, **self._sizes}
        return {**said, "drop_last": self._drop_last, "mask": [self._mask.start or 0, self._mask.stop]}

    def _requests(self, total: int, make: Callable[[int, int], LoadRequest]) -> Iterator[LoadRequest]:
        """Yield the load requests of a pass with `total` rows; a DataLoader worker yields only its own.

        For any number of workers they yield the same requests together: each is made from its number alone.
        """
        worker = current_worker()
        for number in range(-(-total // self._request_rows)):
            if worker is None or worker.owns(number):
                yield make(number, min(self._request_rows, total - number * self._request_rows))

    def _batches(self, places: IntArray) -> list[IntArray]:
        """Cut places in a request into batches."""
        return np.split(places, range(self._batch_size, len(places), self._batch_size))


class SequentialSampler(ChunkSampler):
    """Rows in storage order, each once.

    Args:
        chunk_size: neighbouring rows that are read as one run.
        preload_nchunks: runs of one load request.
        batch_size: rows of a batch; divides chunk_size * preload_nchunks.
        drop_last: drop the last batch if it is not full.
        mask: the rows to take, a contiguous slice; None = all.

    Raises:
        ConfigError: sizes do not fit together, or the mask is not a range. In a pass: the mask is beyond the data, or
            there are several DataLoader workers, which would change the order.
    """

    @property
    def shuffle(self) -> bool:
        """False."""
        return False

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return the settings that decide the batches of a pass."""
        return self._settings()

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        worker = current_worker()
        if worker is not None and worker.count > 1:
            raise ConfigError(
                f"a DataLoader with {worker.count} workers would mix the stored order: use num_workers=0 (it reads "
                "in the background anyway) or 1"
            )
        start, _ = mask_bounds(self._mask, n_obs)

        def make(number: int, wanted: int) -> LoadRequest:
            first = start + number * self._request_rows
            edges = [*range(first, first + wanted, self._chunk_size), first + wanted]
            runs = [slice(edge, after) for edge, after in pairwise(edges)]
            return {"requests": runs, "splits": self._batches(np.arange(wanted))}

        return self._requests(self._num_rows(n_obs), make)


class RandomSampler(ChunkSampler):
    """Chunks of neighbouring rows in random order; the rows of all chunks of a load request are mixed.

    Without replacement, a pass has every row once. If the range is not a multiple of chunk_size, one chunk is shorter
    than the others; it lies at a random place of the range, and comes last.

    Args:
        chunk_size: neighbouring rows that are read as one run; 1 is a perfect shuffle, and slow on disk.
        preload_nchunks: runs that are read together and mixed.
        batch_size: rows of a batch; divides chunk_size * preload_nchunks.
        replacement: whether a row may appear several times; all rows of the range are then equally likely in each draw.
        num_samples: exact number of rows of a pass; None = all rows of the range.
        drop_last: drop the last batch if it is not full: other rows in each pass.
        mask: the rows to use, a contiguous slice; None = all.
        rng: generator or seed; None = another order in every process. ``torch.manual_seed`` has no effect.

    Raises:
        ConfigError: sizes do not fit together, or the mask is not a range. In a pass: the mask is beyond the data, or
            num_samples exceeds the rows, without replacement or if no chunk fits into the range.
        TypeError: `rng` is neither.
    """

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        replacement: bool = False,
        num_samples: int | None = None,
        drop_last: bool = False,
        mask: slice | None = None,
        rng: Rng = None,
    ) -> None:
        if num_samples is not None:
            whole_number("num_samples", num_samples, least=1)
        super().__init__(
            chunk_size, preload_nchunks, batch_size, drop_last=drop_last, mask=mask, num_samples=num_samples
        )
        self._rng, self._is_seeded, self._replacement = make_generator(rng), rng is not None, replacement

    @property
    def shuffle(self) -> bool:
        """True."""
        return True

    def validate(self, n_obs: int) -> None:
        """Refuse a mask that does not fit `n_obs` rows, and more samples than its rows can give.

        Without replacement, or if the range is shorter than a chunk, the number of rows is the limit.
        """
        start, stop = mask_bounds(self._mask, n_obs)
        asked = self._asked(n_obs)
        if not self._replacement and asked > stop - start:
            raise ConfigError(
                f"num_samples ({asked}) cannot exceed the {stop - start} rows of the range [{start}, {stop}): use "
                "fewer samples, or draw with replacement=True"
            )
        if self._replacement and asked > stop - start < self._chunk_size:
            raise ConfigError(
                f"the {stop - start} rows of the range [{start}, {stop}) are smaller than chunk_size "
                f"({self._chunk_size}), but num_samples ({asked}) needs more: use a smaller "
                "chunk_size, a larger mask, or at most as many samples"
            )

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return the settings that decide the batches of a pass."""
        return {**self._settings(), "replacement": self._replacement, "num_samples": self._num_samples}

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        start, stop = mask_bounds(self._mask, n_obs)
        total = self._num_rows(n_obs)
        if self._replacement:
            return self._requests(total, partial(self._repeated, self._draws, start, stop))
        return self._requests(total, self._once(self._draws, start, stop))

    def _once(self, draws: PassDraws, start: int, stop: int) -> Callable[[int, int], LoadRequest]:
        """Return a function that makes the requests of a pass without replacement.

        If the pass ends before all rows were used, chunks start at a random row and wrap around, so that all rows are
        equally likely; otherwise they start at the first row, like chunks of the store.
        """
        rng, chunk_size, num_rows = draws.generator(), self._chunk_size, stop - start
        order: IntArray = rng.permutation(-(-num_rows // chunk_size))
        is_part = self._num_samples is not None and self._num_samples < num_rows
        turn = int(rng.integers(num_rows)) if is_part else 0
        short, last = num_rows % chunk_size, int(order[-1])  # the last chunk may be short

        def make(number: int, wanted: int) -> LoadRequest:
            runs, size, count = [], 0, self._request_rows // chunk_size
            for chunk in order[number * count : (number + 1) * count].tolist():
                # chunks after the short one begin earlier by what it lacks
                first = chunk * chunk_size - (chunk_size - short if short and chunk > last else 0)
                length = short if short and chunk == last else chunk_size
                size += length
                runs += _circle(start + (first + turn) % num_rows, length, start, stop)
                if is_part and size >= wanted:
                    break
            places: IntArray = draws.generator(request=number).permutation(size)[:wanted]
            return {"requests": runs, "splits": self._batches(places)}

        return make

    def _repeated(self, draws: PassDraws, start: int, stop: int, number: int, wanted: int) -> LoadRequest:
        """Return a request of a pass with replacement.

        A chunk begins at any row of the range with the same probability and wraps around its end, so every row is
        equally likely to be in it.
        """
        rng, size = draws.generator(request=number), self._chunk_size
        runs = []
        for place, first in enumerate(rng.integers(start, stop, -(-wanted // size)).tolist()):
            runs += _circle(first, min(size, wanted - place * size), start, stop)
        return {"requests": runs, "splits": self._batches(rng.permutation(wanted))}
