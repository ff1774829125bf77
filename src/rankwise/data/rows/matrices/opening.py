"""From a place in an AnnData store to the matrix that lies there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.rows.matrices.stored import StoredDense, StoredMatrix, StoredSparse
from rankwise.data.store import ArrayMeta, BoxReader
from rankwise.data.store.meta import STORES
from rankwise.data.store.meta.documents import resolve_place
from rankwise.errors import DataError

__all__ = ["open_matrix"]

_PARTS = ("data", "indices", "indptr")
_LENGTHS = "row_nnz"  # our writer puts it there


def open_matrix(uri: str | os.PathLike[str], reader: BoxReader) -> StoredMatrix:
    """Open a matrix of an AnnData store, such as ``STORE/X``, ``STORE/layers/counts`` or ``STORE/obsm/X_pca``.

    Args:
        uri: folder or URL of the matrix: a group with a CSR matrix, or an array.
        reader: will read its row pointers.

    Raises:
        DataError: there is none, it is stored in another way (columns first, for example), or it is damaged.
    """
    place = resolve_place(uri)
    node = STORES.node(place)
    if node is None:
        raise STORES.missing(place)
    if node.kind == "array":
        array = STORES.array(node)
        return StoredDense(array=array)
    kind = node.attributes.get("encoding-type")
    if kind != "csr_matrix":
        raise DataError(_unfit(place, kind))
    parts = {name: _part(place, name) for name in _PARTS}
    beside = STORES.node(f"{place}/{_LENGTHS}")
    lengths = STORES.array(beside) if beside is not None and beside.kind == "array" else None
    shape = _shape(node.attributes)
    num_cols = None if shape is None else shape[1]
    pointers = RowPointers(parts["indptr"], parts["data"].shape[0], reader, lengths=lengths, num_cols=num_cols)
    return StoredSparse(
        place=place,
        num_cols=_num_cols(place, node.attributes, pointers.num_rows),
        data=parts["data"],
        indices=parts["indices"],
        pointers=pointers,
        rows_per_chunk=_rows_per_chunk(node.attributes) if lengths is not None else None,
    )


def _part(place: str, name: str) -> ArrayMeta:
    node = STORES.node(f"{place}/{name}")
    if node is None or node.kind != "array":
        raise DataError(f"the CSR matrix {place} lacks its array {name!r}: copy or write it again")
    return STORES.array(node)


def _rows_per_chunk(attributes: Mapping[str, Any]) -> int | None:
    said = attributes.get("rows_per_chunk")
    return said if isinstance(said, int) and said > 0 else None


def _shape(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    shape = attributes.get("shape")
    if isinstance(shape, (list, tuple)) and len(shape) == 2 and all(isinstance(size, int) for size in shape):
        return shape[0], shape[1]
    return None


def _num_cols(place: str, attributes: Mapping[str, Any], num_rows: int) -> int:
    shape = _shape(attributes)
    if shape is None or shape[0] != num_rows:
        raise DataError(
            f"the CSR matrix {place} wants an attribute shape=[{num_rows}, columns] that fits its row pointers; got "
            f"{attributes.get('shape')!r}: write it again"
        )
    return shape[1]


def _unfit(place: str, kind: Any) -> str:
    if kind == "csc_matrix":
        return (
            f"the matrix {place} is stored column by column (CSC): reading its rows would decode all of it; write it "
            "by rows, for example with adata.X = adata.X.tocsr()"
        )
    return f"{place} holds {'no matrix' if kind is None else repr(kind)}; rows come from CSR matrices and dense arrays"
