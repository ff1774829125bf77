"""Matrices on disk that grow by rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.writing.layout import lay_out
from rankwise.data.rows.writing.padding import pad_rows
from rankwise.data.rows.writing.sizes import parse_size
from rankwise.data.rows.writing.streams import ArrayStream
from rankwise.errors import ConfigError

__all__ = ["DenseWriter", "MatrixFormat", "SparseWriter"]

_POINTER_CHUNK = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFormat:
    """How matrices are stored.

    Attributes:
        n_obs_per_chunk: rows of a chunk.
        shard_size: of a file: rows, or bytes as a text such as "1GB".
        compressors: codecs of Zarr; None = Blosc with lz4 at level 3 and byte shuffle.
        align_rows: whether the chunk edges of CSR matrices fall on row edges.
        most_shard_bytes: files are no larger than this, as one of each array is held in memory; None = no limit.

    Raises:
        ConfigError: a number is below 1, or a size is none.
    """

    n_obs_per_chunk: int = 64
    shard_size: int | str = "1GB"
    compressors: Any = None
    align_rows: bool = True
    most_shard_bytes: int | None = None

    def __post_init__(self) -> None:
        parse_size(self.shard_size, "shard_size")
        if not isinstance(self.n_obs_per_chunk, int) or self.n_obs_per_chunk < 1:
            raise ConfigError(f"n_obs_per_chunk wants a whole number of rows >= 1, got {self.n_obs_per_chunk!r}")

    @property
    def codecs(self) -> Any:
        """Codecs of Zarr."""
        if self.compressors is not None:
            return self.compressors
        from zarr.codecs import BloscCodec

        return (BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"),)

    def shard_rows(self, row_bytes: float) -> int:
        """Rows of a shard, for rows of so many bytes."""
        size = self.shard_size
        rows = size if isinstance(size, int) else parse_size(size, "shard_size") / max(row_bytes, 1e-9)
        if self.most_shard_bytes is not None:
            rows = min(rows, self.most_shard_bytes / max(row_bytes, 1e-9))
        return max(1, int(min(rows, 2**62)))


class SparseWriter:
    """A CSR matrix that grows by rows, as AnnData stores it.

    Args:
        group: Zarr v3 group that will hold it.
        name: its name there.
        lengths: int64[rows], elements of every row that will come.
        num_cols: columns.
        dtype: dtype of the elements.
        form: how it is stored.
    """

    def __init__(
        self, group: Any, name: str, *, lengths: IntArray, num_cols: int, dtype: DType, form: MatrixFormat
    ) -> None:
        self._lengths, self._num_cols, self._done = lengths, num_cols, 0
        rows_per_chunk = min(form.n_obs_per_chunk, max(1, len(lengths)))
        self.layout = lay_out(lengths, num_cols, rows_per_chunk, align=form.align_rows)
        self._group = group.create_group(name)
        attributes: dict[str, Any] = {
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": [len(lengths), num_cols],
        }
        if self.layout.pads is not None:
            attributes["rows_per_chunk"] = rows_per_chunk
        self._group.attrs.update(attributes)
        index_dtype = np.min_scalar_type(max(0, num_cols - 1))
        per_row = self.layout.num_elements / max(1, len(lengths))
        shard = int(form.shard_rows(per_row * (dtype.itemsize + index_dtype.itemsize)) * per_row)
        options = {"shape": (self.layout.num_elements,), "chunk": self.layout.chunk, "compressors": form.codecs}
        self._data = ArrayStream(self._group, "data", dtype=dtype, shard=shard, **options)
        self._indices = ArrayStream(self._group, "indices", dtype=index_dtype, shard=shard, **options)
        self._write_pointers(form)

    def append_rows(self, data: NDArray, indices: NDArray, num_rows: int) -> None:
        """Add the next `num_rows` rows."""
        rows = slice(self._done, self._done + num_rows)
        if self.layout.pads is not None:
            data, indices = pad_rows(data, indices, self._lengths[rows], self.layout.pads[rows], self._num_cols)
        self._data.append(data)
        self._indices.append(indices)
        self._done += num_rows

    def close(self) -> None:
        """Write what is left."""
        self._data.close()
        self._indices.close()

    def _write_pointers(self, form: MatrixFormat) -> None:
        pads = self.layout.pads
        stored = self._lengths if pads is None else self._lengths + pads
        pointers = np.concatenate([[0], np.cumsum(stored, dtype=np.int64)])
        narrow: DType = np.dtype(np.int32 if self.layout.num_elements < 2**31 else np.int64)
        arrays = {"indptr": pointers.astype(narrow)}
        if pads is not None:
            most = int(self._lengths.max(initial=0))
            arrays["row_nnz"] = self._lengths.astype(np.min_scalar_type(most))
        for name, values in arrays.items():
            stream = ArrayStream(
                self._group,
                name,
                shape=values.shape,
                dtype=values.dtype,
                chunk=_POINTER_CHUNK,
                shard=64 * _POINTER_CHUNK,
                compressors=form.codecs,
            )
            stream.append(values)
            stream.close()


class DenseWriter:
    """A dense matrix, or an array of any number of axes, that grows along its first.

    Args:
        group: Zarr v3 group that will hold it.
        name: its name there.
        num_rows: rows that will come.
        row_shape: shape of a row.
        dtype: dtype of the elements.
        form: how it is stored.
    """

    def __init__(
        self, group: Any, name: str, *, num_rows: int, row_shape: tuple[int, ...], dtype: DType, form: MatrixFormat
    ) -> None:
        self._stream = ArrayStream(
            group,
            name,
            shape=(num_rows, *row_shape),
            dtype=dtype,
            chunk=form.n_obs_per_chunk,
            shard=form.shard_rows(int(np.prod(row_shape)) * dtype.itemsize),
            compressors=form.codecs,
            attributes={"encoding-type": "array", "encoding-version": "0.2.0"},
        )

    def append(self, values: NDArray) -> None:
        """Add the next rows."""
        self._stream.append(values)

    def close(self) -> None:
        """Write what is left."""
        self._stream.close()
