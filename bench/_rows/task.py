"""`Task`: the rows that every reader of a comparison reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SEED = 1234


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Requests of rows: runs of neighbouring rows from anywhere, mixed, and cut into batches.

    Attributes:
        store: AnnData store whose X is read.
        baseline: the same matrix as annbatch writes it; what is compared with ours reads this one.
        shape: rows and columns.
        sparse: whether X is a CSR matrix.
        run: neighbouring rows that are drawn together (annbatch's `chunk_size`).
        request: rows of a request.
        batch: rows of a batch.
        genes: how many columns the readers of chosen columns give.
        threads: threads of a reader.
        cache_bytes: decoded chunks that an `OrderedLoader` keeps; None = as many as it does by itself.
    """

    store: str
    baseline: str
    shape: tuple[int, int]
    sparse: bool
    run: int
    request: int
    batch: int
    genes: int
    threads: int
    cache_bytes: int | None = None

    def starts(self, number: int) -> np.ndarray:
        """Return where the runs of a request begin, int64[runs]."""
        rng = np.random.default_rng([SEED, number])
        return rng.choice(self.shape[0] // self.run, self.request // self.run, replace=False) * self.run

    def order(self, number: int) -> np.ndarray:
        """Return in which order the rows of all runs of a request come out, int64[rows]."""
        return np.random.default_rng([SEED, number, 1]).permutation(self.request // self.run * self.run)

    def rows(self, number: int) -> np.ndarray:
        """Return the rows of a request as they come out, int64[rows]."""
        return (self.starts(number)[:, None] + np.arange(self.run)).ravel()[self.order(number)]

    def cuts(self) -> list[slice]:
        """Return where the batches of a request lie in it."""
        total = self.request // self.run * self.run
        return [slice(first, min(first + self.batch, total)) for first in range(0, total, self.batch)]

    def sampler_arguments(self) -> dict[str, Any]:
        """Return what a loader is given for requests of this kind, ours and annbatch's alike."""
        return {
            "chunk_size": self.run,
            "preload_nchunks": self.request // self.run,
            "batch_size": self.batch,
            "shuffle": True,
        }

    def columns(self) -> np.ndarray:
        """Return the chosen columns, int64[genes], sorted."""
        return np.sort(np.random.default_rng(SEED).choice(self.shape[1], self.genes, replace=False))

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read `to_json` back."""
        fields = json.loads(text)
        return cls(**{**fields, "shape": tuple(fields["shape"])})
