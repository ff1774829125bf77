"""`RequestSizes`: chunks, requests and batches, and how they fit together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["RequestSizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSizes:
    """How many rows go together.

    Attributes:
        chunk_size: neighbouring rows that are read as one run.
        preload_nchunks: runs that are read together and mixed: one load request.
        batch_size: rows of a batch; a divisor of the rows of a request.

    Raises:
        ConfigError: they do not fit together.
    """

    chunk_size: int
    preload_nchunks: int
    batch_size: int

    def __post_init__(self) -> None:
        for name in ("chunk_size", "preload_nchunks", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        rows, batch = self.request_rows, self.batch_size
        product = f"{self.chunk_size} * {self.preload_nchunks} = {rows}"
        if batch > rows:
            raise ConfigError(
                f"batch_size cannot exceed chunk_size * preload_nchunks: got {batch}, but a request has {product} "
                f"rows; take preload_nchunks={-(-batch // self.chunk_size)} or more"
            )
        if rows % batch:
            raise ConfigError(
                f"chunk_size * preload_nchunks must be divisible by batch_size: a request has {product} rows, which "
                f"leaves {rows % batch} after batches of {batch}; take batch_size={self._nearest_divisor()}, or other "
                "sizes"
            )

    @property
    def request_rows(self) -> int:
        """Rows of a full request."""
        return self.chunk_size * self.preload_nchunks

    def num_batches(self, total: int, *, drop_last: bool) -> int:
        """Batches of a pass of `total` rows."""
        return total // self.batch_size if drop_last else -(-total // self.batch_size)

    def num_rows(self, total: int, *, drop_last: bool) -> int:
        """Rows that a pass of `total` rows hands out."""
        return total // self.batch_size * self.batch_size if drop_last else total

    def cut(self, places: IntArray) -> list[IntArray]:
        """Cut places in a request into batches."""
        return np.split(places, range(self.batch_size, len(places), self.batch_size))

    def _nearest_divisor(self) -> int:
        rows = self.request_rows
        return min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(n - self.batch_size))
