"""One micro-batch out of a map-style dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from rankwise.data.contract import IntArray, OrderState, Share, sample_keys
from rankwise.data.samples.trees import first_twice

__all__ = ["DatasetBatch"]


class DatasetBatch:
    """Implements `Batch`. Its memory is its own: it stays valid after its step.

    Attributes:
        data: what ``collate_fn`` returned, on the device.
    """

    def __init__(self, share: Share, data: Any, *, uncut: Any = None) -> None:
        self._share = share
        self.data = data
        # what an empty batch was cut from: a real sample, for `stand_in`
        self._uncut = data if uncut is None else uncut

    def __repr__(self) -> str:
        step = self._share.step
        return (
            f"DatasetBatch(epoch={step.epoch}, step={step.index}, micro={self._share.micro}/{self._share.num_micro}, "
            f"samples={len(self.ids)}: {type(self.data).__name__})"
        )

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
        """Real samples: not padding."""
        weights = self._share.weights
        return len(self.ids) if weights is None else int(np.count_nonzero(weights))

    @property
    def resume(self) -> OrderState:
        """The state after the step that this batch belongs to."""
        return self._share.step.resume

    def __len__(self) -> int:
        """Number of samples, padding included."""
        return len(self.ids)

    def __getitem__(self, field: str | int) -> Any:
        """Return ``data[field]``: a name of a dict, a number of a tuple or list.

        Raises:
            KeyError: there is no such field; the message says what there is.
        """
        data = self.data
        if isinstance(data, Mapping) and field in data:
            return data[field]
        if isinstance(data, (tuple, list)) and isinstance(field, int) and -len(data) <= field < len(data):
            return data[field]
        if isinstance(data, Mapping):
            has = f"a dict with {', '.join(map(repr, data))}"
        elif isinstance(data, (tuple, list)):
            has = f"a {type(data).__name__} of {len(data)}: use batch[0] to batch[{len(data) - 1}]"
        else:
            has = f"one {type(data).__name__}: use batch.data"
        raise KeyError(f"the batch has no field {field!r}; what collate_fn returned is {has}")

    def stand_in(self) -> DatasetBatch:
        """Return a batch of two samples that owns its memory: the first one twice, real data also in an empty batch.

        Where ``collate_fn`` returns something whose samples cannot be told apart, it is that whole.
        """
        ids = np.resize(self.ids if len(self.ids) else self._share.step.ids[:1], 2)
        share = replace(self._share, micro=0, num_micro=1, positions=ids, ids=ids, weights=None)
        return DatasetBatch(share, first_twice(self._uncut))

    def release(self, event: Any = None) -> None:
        """Do nothing: the memory is not used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
