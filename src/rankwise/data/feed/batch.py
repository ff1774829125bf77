"""One micro-batch of one rank: as it was read, as the loop gets it on its device, and the totals of a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rankwise.data.contract import IntArray, ReadReport, Share, Step, sample_keys
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.csr import copied_field, first_twice
from rankwise.data.feed.memory.lease import done_of
from rankwise.data.feed.place import Placed
from rankwise.errors import ConfigError


def step_keys(step: Step, ids: IntArray) -> IntArray:
    """Return the keys of samples of a step, int64: f(seed, epoch, sample)."""
    return sample_keys(step.resume.seed, step.epoch, ids)


class ShareView:
    """The part of the contract's `Batch` that follows from the share; subclasses add the data.

    Args:
        share: which samples the batch holds: those that arrived.
        num_lost: real samples that should have been among them, but were damaged and left out.
        may_skip: whether batches of this loader may lack samples, on this or any other rank: then only all ranks
            together know how many samples a step has.

    Attributes:
        share: see the arguments.
        ids: int64[B], sample ids, padding included.
        num_lost: see the arguments.
        may_skip: see the arguments.
        resume: the state after the step that this batch belongs to.
    """

    def __init__(self, share: Share, *, num_lost: int = 0, may_skip: bool = False) -> None:
        self.share, self.ids, self.resume = share, share.ids, share.step.resume
        self.num_lost, self.may_skip = num_lost, may_skip

    @property
    def key(self) -> IntArray:
        """int64[B]: f(seed, epoch, sample), the same at any world size and after any restart."""
        return step_keys(self.share.step, self.ids)

    @property
    def count(self) -> int:
        """Real samples that arrived: neither padding nor skipped."""
        weights = self.share.weights
        return len(self.ids) if weights is None else int(np.count_nonzero(weights))

    @property
    def weights(self) -> Any:
        """float32[B]: 1 for each sample, 0 for padding."""
        weights = self.share.weights
        return np.ones(len(self.ids), np.float32) if weights is None else weights.astype(np.float32)

    def __len__(self) -> int:
        """Number of samples, padding included."""
        return len(self.ids)

    def _described(self, what: str) -> str:
        step, share = self.share.step, self.share
        return (
            f"{type(self).__name__}(epoch={step.epoch}, step={step.index}, micro={share.micro}/{share.num_micro}, "
            f"samples={len(self.ids)}: {what})"
        )


class NamedFields(ABC):
    """Fields by name, until they are released. A context manager that releases them."""

    _fields: dict[str, Any] | None

    @property
    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The fields; raises an error if they were released."""

    @abstractmethod
    def release(self, event: Any = None) -> None:
        """Give the memory back."""

    def __getitem__(self, field: str) -> Any:
        """Return a field, batch axis first.

        Raises:
            ConfigError: the batch was released.
            KeyError: there is no such field.
        """
        fields = self._fields
        if fields is None:
            fields = self.fields  # raises ConfigError if released
        if field not in fields:
            raise KeyError(f"the batch has no field {field!r}; it has {', '.join(map(repr, fields))}")
        return fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __contains__(self, field: object) -> bool:
        return field in self.fields

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields; so ``model(**batch)`` passes them all."""
        return tuple(self.fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class FeedBatch(NamedFields, ShareView):
    """Implements `Batch`. Made by `FeedLoader`.

    ``batch["image"]`` is a field, batch axis first. A ragged field is a CSR matrix: ``torch.sparse_csr``, or SciPy's
    if no device was requested. ``list(batch)`` gives the field names. The memory stays valid while the caller keeps
    the batch, a field or a view of one; the loader reuses it only when none of these is left. `release` gives it back
    early. `detach` makes a copy, so that keeping one field does not keep the memory of the whole batch.
    """

    def __init__(
        self,
        share: Share,
        fields: dict[str, Any],
        *,
        lent: HostBuffer | None = None,
        is_view: bool = False,
        num_lost: int = 0,
        may_skip: bool = False,
        weights: Any = None,
    ) -> None:
        super().__init__(share, num_lost=num_lost, may_skip=may_skip)
        self._weights = weights
        self._fields: dict[str, Any] | None = fields
        self._lent, self._is_view = lent, is_view

    def __repr__(self) -> str:
        return self._described("released" if self._fields is None else ", ".join(self._fields))

    @property
    def weights(self) -> Any:
        """float32 [rows]: 1 for each row of the fields that is a sample, 0 for padding.

        A NumPy array; if the fields are global JAX arrays, a global JAX array with the same sharding.
        """
        return super().weights if self._weights is None else self._weights

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by name.

        Raises:
            ConfigError: the batch was released.
        """
        if self._fields is None:
            raise ConfigError(
                f"{self!r} was released by release(), or by leaving its with block: copy what you need before. A batch "
                "that is not released stays valid"
            )
        return self._fields

    def __getstate__(self) -> dict[str, Any]:
        return vars(self.detach())  # for pickle and deepcopy: the rows of this batch, not the memory that it shares

    def detach(self) -> Self:
        """Return a copy with memory of its own, as large as the batch and no larger."""
        copies = {name: copied_field(field) for name, field in self.fields.items()}
        return self._again(copies)

    def stand_in(self) -> FeedBatch:
        """Return a picklable batch of two samples in its own memory: the first one twice, or zeros if none."""
        some = len(self.ids) > 0
        ids = self.ids[[0, 0]] if some else np.zeros(2, dtype=np.int64)
        share = replace(self.share, micro=0, num_micro=1, positions=ids, ids=ids, weights=None)
        fields = {name: first_twice(field, some=some) for name, field in self.fields.items()}
        return FeedBatch(share, fields)

    def _again(self, fields: dict[str, Any]) -> Self:
        return type(self)(
            self.share,
            fields,
            is_view=self._is_view,
            num_lost=self.num_lost,
            may_skip=self.may_skip,
            weights=self._weights,
        )

    def leave(self) -> None:
        """Say that the loop has gone on: the loader reads further batches; this one stays valid while it is kept."""
        if self._lent is not None:
            self._lent.give_back()
        if not self._is_view:
            self._lent = None

    def release(self, event: Any = None) -> None:
        """Give the memory back: the loader refills it when no view of it is left. Calling it twice is fine.

        Calling it is optional. It names the device work that still reads views which are gone from Python, and it lets
        the loader read on before the loop takes the next batch.

        Args:
            event: an event of torch or CuPy, or a JAX array; its computation may read the batch until it is ready.

        Raises:
            ConfigError: `event` is neither; the batch is released at once.
        """
        lent, self._lent = self._lent, None
        try:
            done = done_of(event)
            if lent is not None and self._is_view and done is not None:
                lent.lease.wait_for(done)  # before the fields are dropped, which may drop the last views
        finally:
            self._fields = None
            if lent is not None:
                lent.give_back()


class MicroBatches(tuple[FeedBatch, ...]):
    """The batches of a step on this rank, often a single one; says so to a loop that takes them for a batch."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, str):
                raise TypeError(
                    f"a step is a tuple of micro-batches, here {len(self)}, and no batch with a field {index!r}: write "
                    "`for (batch,) in loader`, or with micro_batch= `for batches in loader: for batch in batches`"
                )
            return super().__getitem__(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """One micro-batch that was read.

    Attributes:
        share: the samples that arrived.
        lent: their memory, until it is given back.
        placed: their fields.
        report: errors and chunk counts of the read.
        num_lost: real samples that were skipped.
    """

    share: Share
    lent: HostBuffer
    placed: Placed
    report: ReadReport
    num_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStep:
    """The micro-batches of one step, and how long it took to read them."""

    batches: tuple[ReadBatch, ...]
    read_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Totals of what a loader has handed out since it was made.

    Attributes:
        steps: steps.
        samples: samples of this rank, padding included.
        skipped: damaged samples of this rank that were left out.
        chunks_decoded: chunks decoded for them; chunks found in a cache do not count.
        slow_chunks: those of them that only zarr-python can decode.
        fill_chunks: chunks that are missing from the store, read as the fill value.
        read_s: seconds the reader spent on them.
        wait_s: seconds the consumer waited for them.
    """

    steps: int = 0
    samples: int = 0
    skipped: int = 0
    chunks_decoded: int = 0
    slow_chunks: int = 0
    fill_chunks: int = 0
    read_s: float = 0.0
    wait_s: float = 0.0

    def after(self, step: ReadStep, *, waited_s: float) -> LoaderStats:
        """Return the totals with one more step.

        Args:
            step: what was read.
            waited_s: seconds the consumer waited for it.
        """
        samples, skipped, fast, slow, fill = self.samples, self.skipped, 0, self.slow_chunks, self.fill_chunks
        for batch in step.batches:  # runs at each step of every loader: one loop, and no `replace`
            samples += len(batch.share.ids)
            skipped += batch.num_lost
            fast += batch.report.fast_chunks
            slow += batch.report.slow_chunks
            fill += batch.report.fill_chunks
        return LoaderStats(
            steps=self.steps + 1,
            samples=samples,
            skipped=skipped,
            chunks_decoded=self.chunks_decoded + fast + slow - self.slow_chunks,
            slow_chunks=slow,
            fill_chunks=fill,
            read_s=self.read_s + step.read_s,
            wait_s=self.wait_s + waited_s,
        )
