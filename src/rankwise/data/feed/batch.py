"""One micro-batch of one rank on its device, and the properties that follow from its share alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np

from rankwise.data.contract import IntArray, OrderState, Share, sample_keys
from rankwise.data.feed.memory.buffer import Lent
from rankwise.data.feed.memory.csr import copied_field, first_twice
from rankwise.data.feed.memory.lease import done_of
from rankwise.errors import ConfigError

__all__ = ["FeedBatch", "ShareView"]


class ShareView:
    """The part of the contract's `Batch` that follows from the share; subclasses add the data.

    Args:
        share: which samples the batch holds: those that arrived.
        num_lost: real samples that should have been among them, but were damaged and left out.
        may_skip: whether batches of this loader may lack samples, on this or any other rank.
    """

    def __init__(self, share: Share, *, num_lost: int = 0, may_skip: bool = False) -> None:
        self._share = share
        self._num_lost = num_lost
        self._may_skip = may_skip

    @property
    def share(self) -> Share:
        """Which samples it holds."""
        return self._share

    @property
    def ids(self) -> IntArray:
        """int64[B]: sample ids, padding included."""
        return self._share.ids

    @property
    def key(self) -> IntArray:
        """int64[B]: f(seed, epoch, sample), the same at any world size and after any restart."""
        step = self._share.step
        return sample_keys(step.resume.seed, step.epoch, self._share.ids)

    @property
    def count(self) -> int:
        """Real samples that arrived: neither padding nor skipped."""
        share = self._share
        return len(share.ids) if share.weights is None else int(np.count_nonzero(share.weights))

    @property
    def weights(self) -> Any:
        """float32[B]: 1 for each sample, 0 for padding."""
        weights = self._share.weights
        return np.ones(len(self.ids), np.float32) if weights is None else weights.astype(np.float32)

    @property
    def num_lost(self) -> int:
        """Real samples of this rank's share that were damaged and are not in the batch."""
        return self._num_lost

    @property
    def may_skip(self) -> bool:
        """Whether batches may lack samples: then only all ranks together know how many samples a step has."""
        return self._may_skip

    @property
    def resume(self) -> OrderState:
        """The state after the step that this batch belongs to."""
        return self._share.step.resume

    def __len__(self) -> int:
        """Number of samples, padding included."""
        return len(self.ids)

    def _described(self, what: str) -> str:
        step, share = self._share.step, self._share
        return (
            f"{type(self).__name__}(epoch={step.epoch}, step={step.index}, micro={share.micro}/{share.num_micro}, "
            f"samples={len(self.ids)}: {what})"
        )


class FeedBatch(ShareView):
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
        lent: Lent | None = None,
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

    def detach(self) -> Self:
        """Return a copy with memory of its own, as large as the batch and no larger."""
        copies = {name: copied_field(field) for name, field in self.fields.items()}
        return self._again(copies)

    def stand_in(self) -> FeedBatch:
        """Return a picklable batch of two samples in its own memory: the first one twice, or zeros if none."""
        some = len(self.ids) > 0
        ids = self.ids[[0, 0]] if some else np.zeros(2, dtype=np.int64)
        share = replace(self._share, micro=0, num_micro=1, positions=ids, ids=ids, weights=None)
        fields = {name: first_twice(field, some=some) for name, field in self.fields.items()}
        return FeedBatch(share, fields)

    def with_fields(self, fields: dict[str, Any]) -> Self:
        """Return this batch with other fields. The new batch takes over the memory; this object counts as released."""
        lent, self._lent, self._fields = self._lent, None, None
        return self._again(fields, lent)

    def _again(self, fields: dict[str, Any], lent: Lent | None = None) -> Self:
        return type(self)(
            self._share,
            fields,
            lent=lent,
            is_view=self._is_view,
            num_lost=self._num_lost,
            may_skip=self._may_skip,
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
                lent.busy = done  # set before the fields are dropped, which may drop the last views
        finally:
            self._fields = None
            if lent is not None:
                lent.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
