"""What makes rows the same rows, whichever of their matrices and columns are read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.matrices import HeldMatrix, StoredMatrix
from rankwise.errors import ConfigError, DataError

__all__ = ["first_matrix", "rows_fingerprint"]


def rows_fingerprint(datasets: Sequence[AnyDataset]) -> str:
    """Return a hash of the rows of datasets: their numbers, and of each the metadata of `first_matrix`.

    Equal for copies elsewhere. What else lies in a store may change without another order of its rows.
    """
    facts = []
    for dataset in datasets:
        name, matrix = first_matrix(dataset)
        facts.append((dataset.num_rows, name, None if matrix is None else matrix.fingerprint))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def first_matrix(dataset: AnyDataset) -> tuple[str | None, StoredMatrix | HeldMatrix | None]:
    """Return the matrix that stands for a dataset, with its name: X, or the first by name that rows can be read of."""
    found = _opened(dataset, "X")
    if found is not None:
        return "X", found
    opened = ((name, _opened(dataset, name)) for name in sorted(dataset.matrices))
    return next(((name, matrix) for name, matrix in opened if matrix is not None), (None, None))


def _opened(dataset: AnyDataset, name: str) -> StoredMatrix | HeldMatrix | None:
    try:
        return dataset.matrix(name)
    except (ConfigError, DataError):  # there is none, or it is stored column by column
        return None
