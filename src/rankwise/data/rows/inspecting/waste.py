"""What runs of rows cost, from the metadata of a matrix."""

from __future__ import annotations

import math

from rankwise.data.rows.matrices import StoredMatrix, StoredSparse

__all__ = ["decode_factor"]


def decode_factor(matrix: StoredMatrix, run: int) -> float:
    """Return how many times what it holds is decoded for a run of rows that begins at a multiple of its length.

    Zeros that fill chunks are not counted. Chunks of a CSR matrix whose edges fall inside rows cost one chunk more
    per run, on average, than the rows take, and never more than all chunks that there are.

    Args:
        matrix: the matrix.
        run: rows of a run.
    """
    run = max(1, min(run, matrix.num_rows))
    if isinstance(matrix, StoredSparse) and matrix.rows_per_chunk is None:
        return _inside_rows(matrix, run)
    if run == matrix.num_rows:
        return 1.0
    chunk = matrix.chunk_rows
    runs = math.lcm(run, chunk) // run
    touched = sum(-(-(number + 1) * run // chunk) - number * run // chunk for number in range(runs))
    return touched * chunk / (runs * run)


def _inside_rows(matrix: StoredSparse, run: int) -> float:
    num_elements, chunk = matrix.data.shape[0], matrix.data.chunks[0]
    if not num_elements:
        return 1.0
    elements = run * num_elements / matrix.num_rows
    stored = -(-num_elements // chunk) * chunk  # the last chunk is decoded whole, too
    return min(elements + chunk, stored) / elements
