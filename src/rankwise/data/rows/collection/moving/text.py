"""`Text`: texts as bytes, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray

__all__ = ["Text"]


class Text:
    """A column of texts, some of which may be missing.

    Args:
        lengths: int32[n], bytes of each text in UTF-8; -1 = missing.
        data: uint8, all bytes.
    """

    def __init__(self, lengths: NDArray, data: NDArray) -> None:
        self.lengths, self.data = lengths, data

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, values: Iterable[Any]) -> Text:
        """Pack texts; what pandas takes for missing is missing."""
        import pandas as pd

        held = np.asarray(values, dtype=object)
        packed = [
            None if gone else str(value).encode()
            for value, gone in zip(held.tolist(), pd.isna(held).tolist(), strict=True)
        ]
        lengths = np.fromiter((-1 if one is None else len(one) for one in packed), np.int32, len(packed))
        return cls(lengths, np.frombuffer(b"".join(one for one in packed if one is not None), dtype=np.uint8))

    def objects(self) -> NDArray:
        """Return the texts, object[n]; None = missing."""
        whole, out = self.data.tobytes(), np.empty(len(self), dtype=object)
        stops = np.cumsum(np.maximum(self.lengths, 0), dtype=np.int64).tolist()
        start = 0
        for row, (stop, length) in enumerate(zip(stops, self.lengths.tolist(), strict=True)):
            out[row] = None if length < 0 else whole[start:stop].decode()
            start = stop
        return out

    def take(self, rows: IntArray) -> Text:
        """Return the texts of rows."""
        sizes = np.maximum(self.lengths, 0).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        counts = sizes[rows]
        firsts = np.cumsum(counts) - counts
        places = np.arange(int(counts.sum())) + np.repeat(starts[rows] - firsts, counts)
        return Text(self.lengths[rows], self.data[places])
