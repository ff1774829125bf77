"""Small data for tests: a slow, simple loader over arrays in memory, as a reference for the real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from rankwise.data.contract import (
    JSON,
    BaseLoader,
    FieldSpec,
    IntArray,
    NDArray,
    Order,
    OrderState,
    Share,
    num_micro_batches,
    sample_keys,
    shares,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayBatch:
    """A micro-batch whose fields are torch tensors that own their memory."""

    share: Share
    fields: Mapping[str, Any]
    ids: IntArray
    count: int

    @property
    def key(self) -> IntArray:
        """int64[B]: keys of the samples."""
        return sample_keys(self.share.step.resume.seed, self.share.step.epoch, self.ids)

    @property
    def resume(self) -> OrderState:
        """Return the state after this batch's step."""
        return self.share.step.resume

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def stand_in(self) -> ArrayBatch:
        """Return the first sample twice, or zeros."""
        some = len(self.ids) > 0
        fields = {n: f[[0, 0]] if some else f.new_zeros((2, *f.shape[1:])) for n, f in self.fields.items()}
        ids = self.ids[[0, 0]] if some else np.zeros(2, dtype=np.int64)
        share = replace(self.share, micro=0, num_micro=1, positions=ids, ids=ids, weights=None)
        return ArrayBatch(share=share, fields=fields, ids=ids, count=2)

    def release(self, event: Any = None) -> None:
        """Do nothing: the batch owns its memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ArrayLoader(BaseLoader):
    """`BatchLoader` over NumPy arrays in memory: no threads, no reuse of memory.

    Args:
        arrays: field -> array of equal first axis.
        order: which samples form which step.
        seed: seed of the order.
        rank: the rank.
        world_size: number of ranks.
        micro_batch: maximum number of samples of one rank per pass.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        order: Order,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int | None = None,
    ) -> None:
        self.arrays = arrays
        self._order = order
        self._rank, self._world_size, self._micro_batch = rank, world_size, micro_batch
        self._state = OrderState(seed=seed, epoch=0, position=0, recipe=order.recipe)

    @property
    def order(self) -> Order:
        """Return the order: which samples form which step."""
        return self._order

    @property
    def num_epoch_steps(self) -> int:
        """Return the number of steps of the whole epoch."""
        return self.order.num_steps(self.order.start(self._state.epoch))

    @property
    def micro_batch(self) -> int | None:
        """Return the maximum number of samples of one rank per pass."""
        return self._micro_batch

    def __iter__(self) -> Iterator[tuple[ArrayBatch, ...]]:
        state, epoch = self._state, self._state.epoch
        while state.epoch == epoch:
            step = self.order.step(state)
            num_micro = num_micro_batches(step.size, world_size=self._world_size, micro_batch=self.micro_batch)
            parts = shares(step, rank=self._rank, world_size=self._world_size, num_micro=num_micro)
            yield tuple(self._batch(share) for share in parts)
            state = step.resume

    def __len__(self) -> int:
        return self.order.num_steps(self._state)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless the state lies inside it."""
        if self._state.epoch != epoch:
            seed, recipe = self._state.seed, self._state.recipe
            self._state = OrderState(seed=seed, epoch=epoch, position=0, recipe=recipe)

    def mark_done(self, state: OrderState) -> None:
        """Record the state of a completed step."""
        self._state = state

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`."""
        self._state = OrderState.from_json(state)

    def _batch(self, share: Share) -> ArrayBatch:
        import torch

        fields = {name: torch.from_numpy(values[share.ids]) for name, values in self.arrays.items()}
        real = share.num_samples if share.weights is None else int((share.weights > 0).sum())
        return ArrayBatch(share=share, fields=fields, ids=share.ids, count=real)


class PlainMemory:
    """Implements `BatchBuffer` with new NumPy arrays at each call, filled with a value that no test writes."""

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Create the arrays of a batch."""
        self._held: dict[str, tuple[NDArray, ...]] = {}
        for name, spec in specs.items():
            if spec.ragged:
                sizes = ((capacity[name], spec.dtype), (capacity[name], spec.index_dtype))
                kinds = (*sizes, (num_samples + 1, spec.index_dtype))
                self._held[name] = tuple(np.full(size, 77, dtype) for size, dtype in kinds)
            else:
                self._held[name] = (np.full((num_samples, *spec.shape), 77, spec.dtype),)

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field."""
        return self._held[field]
