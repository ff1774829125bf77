"""`Task`: what every reader of a comparison reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from _crops.stream import Crops, crops_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Batches of crops out of equal arrays, cast to one dtype.

    Attributes:
        arrays: paths of the arrays.
        shape: shape of each of them.
        chunk: shape of their chunks.
        crop: extent of every crop.
        size: crops per batch.
        dtype: dtype of the batch.
        where: how crops are drawn, see `crops_of`.
        threads: threads of a reader that takes a number of threads.
    """

    arrays: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    crop: tuple[int, ...]
    size: int
    dtype: str
    where: str
    threads: int

    def crops(self, batch: int) -> Crops:
        """Return where the boxes of a batch lie."""
        return crops_of(
            batch,
            size=self.size,
            num_arrays=len(self.arrays),
            shape=self.shape,
            crop=self.crop,
            where=self.where,
            chunk=self.chunk,
        )

    def selections(self, batch: int) -> list[tuple[int, tuple[slice, ...]]]:
        """Return the boxes of a batch as (array index, slices)."""
        crops = self.crops(batch)
        ends = crops.starts + np.array(self.crop)
        return [
            (int(array), tuple(map(slice, low.tolist(), high.tolist())))
            for array, low, high in zip(crops.which, crops.starts, ends, strict=True)
        ]

    def empty(self) -> np.ndarray:
        """Return an array for one batch, with its pages in memory."""
        return np.zeros((self.size, *self.crop), dtype=self.dtype)

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read `to_json` back."""
        fields = json.loads(text)
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
