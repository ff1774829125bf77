"""One micro-batch out of a map-style dataset."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from rankwise.data.contract import IntArray, OrderState, Share, sample_keys

__all__ = ["DatasetBatch"]


class DatasetBatch:
    """Implements `Batch`. Its memory is its own: it stays valid after its step.

    Attributes:
        data: what ``collate_fn`` returned, on the device.
    """

    def __init__(self, share: Share, data: Any) -> None:
        self._share = share
        self.data = data

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

    def release(self, event: Any = None) -> None:
        """Do nothing: the memory is not used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
