"""Writes matrices, as a whole or in pieces of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.output.codecs import pad_rows
from rankwise.data.rows.output.shards import SparseLayout, lay_out, parse_size, rows_of_size
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError

__all__ = [
    "MatrixFormat",
    "create_array",
    "create_dense",
    "create_sparse",
    "write_dense",
    "write_sparse",
    "write_whole",
]


def create_array(
    group: Any,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: DType,
    chunk: int,
    shard: int,
    compressors: Any,
    attributes: dict[str, Any] | None = None,
) -> Any:
    """Create an array that is chunked along its first axis only; shards are rounded to whole chunks."""
    chunk = max(1, min(chunk, shape[0]))
    shard = max(chunk, min(shard, shape[0]) // chunk * chunk)
    inner = tuple(max(1, extent) for extent in shape[1:])
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=(chunk, *inner),
        shards=None if 0 in shape else (shard, *inner),
        compressors=compressors,
        attributes=attributes or {},
    )


def write_whole(array: Any, values: NDArray, *, keep_zeros: bool = False) -> None:
    """Write all rows of an array, shard after shard.

    `keep_zeros` also stores chunks of zeros: in a CSR matrix a missing chunk counts as lost.
    """
    zarr = load_zarr()
    with zarr.config.set({"array.write_empty_chunks": keep_zeros}):
        array = zarr.open_array(array.store_path, mode="r+")
    step = (array.shards or array.chunks)[0]
    for start in range(0, len(values), step):
        array[start : start + step] = values[start : start + step]


_POINTER_CHUNK = 2**16
# Blosc makes blocks of 64 KiB from it, for any dtype. By default it makes one block of a chunk of 64 rows, so that
# reading half a chunk costs a whole one. Blocks of this size also stay in the caches while bytes are shuffled.
_BLOCK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFormat:
    """The storage format of matrices.

    Attributes:
        n_obs_per_chunk: rows of a chunk.
        shard_size: of a file: rows (1000 or "1000"), or decoded bytes as text with a unit, for example "1GB".
        compressors: Zarr codecs; None = Blosc with lz4 at level 3 and byte shuffle, in blocks of 64 KiB (of Blosc's
            choice without `align_rows`).
        align_rows: whether to align the chunk edges of CSR matrices to row edges.

    Raises:
        ConfigError: a number is below 1, or a size is invalid.
    """

    n_obs_per_chunk: int = 64
    shard_size: int | str = "1GB"
    compressors: Any = None
    align_rows: bool = True

    def __post_init__(self) -> None:
        parse_size(self.shard_size, "shard_size")
        if not isinstance(self.n_obs_per_chunk, int) or self.n_obs_per_chunk < 1:
            raise ConfigError(f"n_obs_per_chunk must be an integer of rows >= 1, got {self.n_obs_per_chunk!r}")

    @property
    def codecs(self) -> Any:
        """The Zarr codecs."""
        if self.compressors is not None:
            return self.compressors
        from zarr.codecs import BloscCodec

        return (BloscCodec(cname="lz4", clevel=3, shuffle="shuffle", blocksize=_BLOCK if self.align_rows else 0),)

    def shard_rows(self, row_bytes: float) -> int:
        """Return the rows of a shard, for rows of `row_bytes` bytes."""
        return rows_of_size(self.shard_size, "shard_size", row_bytes)


def create_sparse(
    group: Any, name: str, *, lengths: IntArray, num_cols: int, dtype: DType, form: MatrixFormat
) -> SparseLayout:
    """Create a CSR matrix in the format of AnnData, complete except for its elements."""
    rows_per_chunk = min(form.n_obs_per_chunk, max(1, len(lengths)))
    layout = lay_out(lengths, num_cols, rows_per_chunk, align=form.align_rows)
    made = group.create_group(name)
    attributes: dict[str, Any] = {
        "encoding-type": "csr_matrix",
        "encoding-version": "0.1.0",
        "shape": [len(lengths), num_cols],
    }
    if layout.pads is not None:
        attributes["rows_per_chunk"] = rows_per_chunk
    made.attrs.update(attributes)
    index_dtype = np.min_scalar_type(max(0, num_cols - 1))
    per_row = layout.num_elements / max(1, len(lengths))
    shard = int(form.shard_rows(per_row * (dtype.itemsize + index_dtype.itemsize)) * per_row)
    for part, kind in (("data", dtype), ("indices", index_dtype)):
        create_array(
            made,
            part,
            shape=(layout.num_elements,),
            dtype=kind,
            chunk=layout.chunk,
            shard=shard,
            compressors=form.codecs,
        )
    _write_pointers(made, lengths, layout, form)
    return layout


def _write_pointers(made: Any, lengths: IntArray, layout: SparseLayout, form: MatrixFormat) -> None:
    stored = lengths if layout.pads is None else lengths + layout.pads
    pointers = np.concatenate([[0], np.cumsum(stored, dtype=np.int64)])
    narrow: DType = np.dtype(np.int32 if layout.num_elements < 2**31 else np.int64)
    arrays = {"indptr": pointers.astype(narrow)}
    if layout.pads is not None:
        most = int(lengths.max(initial=0))
        arrays["row_nnz"] = lengths.astype(np.min_scalar_type(most))
    for name, values in arrays.items():
        array = create_array(
            made,
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunk=_POINTER_CHUNK,
            shard=64 * _POINTER_CHUNK,
            compressors=form.codecs,
        )
        write_whole(array, values)


def create_dense(
    group: Any, name: str, *, num_rows: int, row_shape: tuple[int, ...], dtype: DType, form: MatrixFormat
) -> Any:
    """Create a dense matrix, or an array with any number of axes, in the format of AnnData; return the empty array."""
    return create_array(
        group,
        name,
        shape=(num_rows, *row_shape),
        dtype=dtype,
        chunk=form.n_obs_per_chunk,
        shard=form.shard_rows(int(np.prod(row_shape)) * dtype.itemsize),
        compressors=form.codecs,
        attributes={"encoding-type": "array", "encoding-version": "0.2.0"},
    )


def write_sparse(group: Any, name: str, matrix: Any, form: MatrixFormat) -> None:
    """Write a CSR matrix from memory."""
    lengths = np.diff(matrix.indptr).astype(np.int64)
    pads = create_sparse(group, name, lengths=lengths, num_cols=matrix.shape[1], dtype=matrix.dtype, form=form).pads
    data, indices = matrix.data, matrix.indices
    if pads is not None:
        data, indices = pad_rows(data, indices, lengths, pads, matrix.shape[1])
    for part, values in (("data", data), ("indices", indices)):
        write_whole(group[name][part], values, keep_zeros=True)


def write_dense(group: Any, name: str, values: NDArray, form: MatrixFormat) -> None:
    """Write an array from memory."""
    row_shape = values.shape[1:]
    array = create_dense(group, name, num_rows=len(values), row_shape=row_shape, dtype=values.dtype, form=form)
    write_whole(array, values)
