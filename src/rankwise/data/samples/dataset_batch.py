"""One micro-batch out of a map-style dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from rankwise.data.contract import Share
from rankwise.data.feed import ShareView
from rankwise.data.samples.trees import first_twice

__all__ = ["DatasetBatch"]


class DatasetBatch(ShareView):
    """Implements `Batch`. Its memory is its own: it stays valid after its step.

    Attributes:
        data: what ``collate_fn`` returned, on the device.
        loader: a weak reference to the loader that made it; None where nobody did. A dataset says nothing of its
            content by itself, so whoever compares the ranks' data asks there.
    """

    def __init__(self, share: Share, data: Any, *, uncut: Any = None, loader: Any = None) -> None:
        super().__init__(share)
        self.data = data
        self.loader = loader
        # what an empty batch was cut from: a real sample, for `stand_in`
        self._uncut = data if uncut is None else uncut

    def __repr__(self) -> str:
        return self._described(type(self.data).__name__)

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

        Where ``collate_fn`` returns something whose samples cannot be told apart, it is that whole: all of its samples.
        """
        data, ids = first_twice(self._uncut), self.ids if len(self.ids) else self._share.step.ids[:1]
        ids = ids if data is self._uncut else np.resize(ids, 2)
        share = replace(self._share, micro=0, num_micro=1, positions=ids, ids=ids, weights=None)
        return DatasetBatch(share, data)

    def release(self, event: Any = None) -> None:
        """Do nothing: the memory is not used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
