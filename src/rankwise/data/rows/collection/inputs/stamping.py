"""Whether an input is the one that it was: what the file system tells of a file, else a look at what it holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.rows.collection.columns import Column
from rankwise.data.rows.collection.inputs.columnwise import Columnwise
from rankwise.data.rows.collection.inputs.tables import Table
from rankwise.data.rows.collection.moving import Text

__all__ = ["content_stamp", "file_stamp"]

_LOOKS = 16  # stretches, spread evenly over all rows
_ROWS = 64  # of each
_ELEMENTS = 4096  # of a matrix by columns


def file_stamp(source: Any) -> tuple[int, int] | None:
    """Return size and time of the change of a file; None of what is no file, as of a folder they tell nothing."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_file():
        return None
    facts = Path(source).stat()
    return facts.st_size, facts.st_mtime_ns


def content_stamp(columns: Iterable[Column], vars_: Mapping[str, Any], tables: Mapping[str, Table]) -> str:
    """Return a hash of some rows of everything, spread over the input; all of them if there are at most 1,024.

    So another layer, normalisation or order is noticed, though not every change of a single value.

    Args:
        columns: about the rows, names included.
        vars_: tables of variables by modality.
        tables: matrices by name.

    Raises:
        DataError: something cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, var in vars_.items():
        digest.update(repr((name, var.index.tolist())).encode())
    for column in columns:
        _add(digest, column.name, (column.block(*span) for span in _spans(column.num_rows, _ROWS)))
        _add(digest, column.kind, [np.array(repr(None if column.categories is None else column.categories.tolist()))])
    for name, table in tables.items():
        _add(digest, name, _seen(table))
    return digest.hexdigest()


def _seen(table: Table) -> Iterator[Any]:
    held = table.held
    if isinstance(held, Columnwise):
        yield held.indptr
        for span in _spans(held.nnz, _ELEMENTS):
            yield from held.elements(*span)
    else:
        yield from (table.block(*span) for span in _spans(table.shape[0], _ROWS))


def _spans(total: int, length: int) -> list[tuple[int, int]]:
    """Where to look: stretches that are as far from each other as can be, the first and last rows among them."""
    if total <= _LOOKS * length:
        return [(0, total)]
    starts = np.linspace(0, total - length, _LOOKS).astype(np.int64).tolist()
    return [(start, start + length) for start in starts]


def _add(digest: Any, name: str, parts: Iterable[Any]) -> None:
    digest.update(name.encode())
    for part in parts:
        if isinstance(part, Text):
            arrays = [part.lengths, part.data]
        else:
            arrays = [part.data, part.indices, part.indptr] if hasattr(part, "indptr") else [part]
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
