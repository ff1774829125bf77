"""What runs of rows cost, from the metadata of a matrix."""

from __future__ import annotations

import math

from rankwise.data.rows.matrices import StoredMatrix, StoredSparse

__all__ = ["decode_factor"]


def decode_factor(matrix: StoredMatrix, run: int) -> float:
    """Return how many times what it holds is decoded for a run of rows that begins at a multiple of its length.

    Zeros that fill chunks are not counted. Chunks of a CSR matrix whose edges fall inside rows cost one chunk more
    per run, on average, than the rows take.

    Args:
        matrix: the matrix.
        run: rows of a run.
    """
    if isinstance(matrix, StoredSparse) and matrix.rows_per_chunk is None:
        return 1 + matrix.chunk_rows / min(run, matrix.num_rows) if matrix.num_rows > matrix.chunk_rows else 1.0
    chunk = matrix.chunk_rows
    runs = math.lcm(run, chunk) // run
    touched = sum(-(-(number + 1) * run // chunk) - number * run // chunk for number in range(runs))
    return touched * chunk / (runs * run)
