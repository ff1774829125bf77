"""Digests of rows: equal where their contents are, whatever the order of their elements and how they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.order.permutation import WordArray, mix_words
from rankwise.data.rows.collection.columns import as_text
from rankwise.data.rows.collection.inputs import Columnwise
from rankwise.data.rows.collection.moving import Text
from rankwise.data.rows.collection.placing import hash_names

__all__ = ["digest_column", "digest_elements", "digest_rows"]

_NOTHING = np.uint64(0x6E6F7468696E6721)  # of a value that is missing


def digest_rows(rows: Any) -> WordArray:
    """Return a 64-bit digest of each row of a CSR matrix or an array; zeros that are stored do not count.

    It is the sum over the elements of a well-mixed word of column and value.
    """
    if hasattr(rows, "indptr"):
        numbers = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        return _sum(rows.shape[0], numbers, rows.indices, rows.data)
    flat = rows.reshape(len(rows), -1)
    numbers, columns = np.nonzero(flat)
    return _sum(len(rows), numbers, columns, flat[numbers, columns])


def digest_elements(matrix: Columnwise, gather: IntArray | None, portion: int) -> WordArray:
    """Return the digests of the rows of a matrix that is stored by columns, read in portions of elements.

    Args:
        matrix: the matrix.
        gather: which column each of its columns is; -1 = none; None = as they are.
        portion: elements that are read at once.
    """
    found = np.zeros(matrix.shape[0], dtype=np.uint64)
    for start in range(0, matrix.nnz, portion):
        rows, columns, values = matrix.elements(start, min(start + portion, matrix.nnz))
        if gather is not None:
            columns = gather[columns]
            rows, columns, values = rows[columns >= 0], columns[columns >= 0], values[columns >= 0]
        found += _sum(matrix.shape[0], rows, columns, values)
    return found


def digest_column(values: Any, column: Any, *, text: bool) -> WordArray:
    """Return a digest of each row of a column about the rows.

    Args:
        values: what the column has read.
        column: the column.
        text: whether to take it as text: categories, and what is text on the other side.
    """
    if text:
        held = values if isinstance(values, Text) else as_text(values, column)
        words = hash_names(held)
        words[held.lengths < 0] = _NOTHING
        return words
    if values.dtype.names:
        words = _words(values["value"])
        words[values["missing"]] = _NOTHING
        return words
    words = _words(values)
    words[np.isnan(values)] = _NOTHING
    return words


def _sum(num_rows: int, rows: NDArray, columns: NDArray, values: NDArray) -> WordArray:
    kept = values != 0
    words = mix_words(mix_words(columns[kept].astype(np.uint64)) ^ _words(values[kept]))
    found = np.zeros(num_rows, dtype=np.uint64)
    np.add.at(found, rows[kept], words)
    return found


def _words(values: NDArray) -> WordArray:
    """Bits of numbers, the same for a number in any dtype."""
    if values.dtype.kind == "c":
        return _words(values.real) ^ mix_words(_words(values.imag))
    words: WordArray = values.astype(np.float64).view(np.uint64)
    return words
