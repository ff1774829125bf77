"""What makes rows the same rows, whichever of their matrices and columns are read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rankwise.data.rows.datasets import Dataset
from rankwise.data.rows.matrices import StoredMatrix
from rankwise.errors import DataError

__all__ = ["first_matrix", "rows_fingerprint"]


def rows_fingerprint(datasets: Sequence[Dataset]) -> str:
    """Return a hash of the rows of datasets: their numbers, and of each the metadata of `first_matrix`.

    Equal for copies elsewhere. What else lies in a store may change without another order of its rows.
    """
    facts = []
    for dataset in datasets:
        name, matrix = first_matrix(dataset)
        facts.append((dataset.num_rows, name, None if matrix is None else matrix.fingerprint))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def first_matrix(dataset: Dataset) -> tuple[str | None, StoredMatrix | None]:
    """Return the matrix that stands for a dataset, with its name: X, or the first by name that rows can be read of."""
    for name in sorted(dataset.matrices, key=lambda name: (name != "X", name)):
        try:
            return name, dataset.matrix(name)
        except DataError:  # stored column by column, say
            continue
    return None, None
