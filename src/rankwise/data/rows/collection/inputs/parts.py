"""Which parts of an input are written, and stamps that show whether it has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.buckets import Text
from rankwise.data.rows.collection.columns import Column, columns_of_frame, index_of_frame, open_columns
from rankwise.data.rows.collection.inputs.tables import Columnwise, Table
from rankwise.data.rows.datasets import load_anndata
from rankwise.errors import DataError, RankwiseError

__all__ = ["Parts", "content_stamp", "file_stamp", "parts_in_memory", "parts_of_member", "stored_parts"]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of an AnnData."""

    index: Column
    columns: dict[str, Column]
    vars: dict[str, Any]  # tables of variables by modality, the first one under ""
    matrices: Mapping[str, tuple[Any, IntArray | None]]  # by name, the object to slice and its rows to use; None = all
    raw: bool = False


def parts_in_memory(adata: Any, label: str) -> Parts:
    """Return the parts of an AnnData in memory, backed or lazy."""
    found = {"X": adata.X} if adata.X is not None else {}
    for table in ("layers", "obsm"):
        found |= {f"{table}/{name}": held for name, held in getattr(adata, table).items()}
    obs = _in_memory(adata.obs)
    return Parts(
        index=index_of_frame(obs),
        columns=columns_of_frame(obs, label),
        vars={"": _in_memory(adata.var)},
        matrices={name: (held, None) for name, held in found.items()},
        raw=adata.raw is not None,
    )


def stored_parts(group: Any, label: str) -> Parts:
    """Return the parts of an AnnData store, a Zarr or HDF5 group."""
    found = {"X": group["X"]} if _holds(group, "X") else {}
    for table in ("layers", "obsm"):
        if table in group:
            found |= {f"{table}/{name}": group[table][name] for name in sorted(group[table].keys())}
    try:
        index, columns = open_columns(group["obs"], label)
        var = load_anndata().io.read_elem(group["var"])
    except RankwiseError:
        raise
    except Exception as error:  # any error of a file format
        raise DataError(f"the tables obs and var of {label} cannot be read: {error}") from error
    matrices = {name: (_sliceable(held), None) for name, held in found.items()}
    return Parts(index, columns, {"": var}, matrices, _holds(group, "raw"))


def parts_of_member(group: Any, label: str) -> Parts:
    """Return the parts of a dataset of a collection, including further modalities."""
    first = stored_parts(group, label)
    held = group["uns/mod"] if "uns" in group and "mod" in group["uns"] else {}
    parts = {name: stored_parts(held[name], f"{label}/mod/{name}") for name in sorted(held)}
    matrices = {
        f"mod/{name}/{matrix}": found for name, part in parts.items() for matrix, found in part.matrices.items()
    }
    vars_ = {name: part.vars[""] for name, part in parts.items()}
    return replace(first, vars=first.vars | vars_, matrices={**first.matrices, **matrices})


def _in_memory(frame: Any) -> Any:
    return frame.to_memory() if hasattr(frame, "to_memory") else frame


def _holds(group: Any, name: str) -> bool:
    return name in group and dict(group[name].attrs).get("encoding-type") != "null"


def _sliceable(held: Any) -> Any:
    kind = dict(held.attrs).get("encoding-type")
    if kind == "csc_matrix":
        return Columnwise.stored(held)
    return load_anndata().io.sparse_dataset(held) if kind == "csr_matrix" else held


_LOOKS = 16  # ranges of rows, spread evenly over all rows
_ROWS = 64  # rows in each
_ELEMENTS = 4096  # elements of a matrix stored by columns


def file_stamp(source: Any) -> tuple[int, int] | None:
    """Return size and modification time of a file; None for other inputs, because those of a folder say nothing."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_file():
        return None
    facts = Path(source).stat()
    return facts.st_size, facts.st_mtime_ns


def content_stamp(columns: Iterable[Column], vars_: Mapping[str, Any], tables: Mapping[str, Table]) -> str:
    """Return a hash of sampled rows of all parts, spread over the input; of all rows if there are at most 1,024.

    It detects another layer, normalisation or order, but not every change of a single value.
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
    """Return row ranges as far apart as possible, including the first and the last rows."""
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
