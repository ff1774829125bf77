"""`write_sharded`: writes one AnnData as a store that training reads fast; and its matrices, also in pieces of rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray, whole_number
from rankwise.data.rows.datasets.search import load_anndata
from rankwise.data.rows.output.shards import SparseLayout, codecs_of, lay_out, pad_rows, parse_size, rows_of_size
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError


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
        rows = whole_number("n_obs_per_chunk", self.n_obs_per_chunk, least=1)
        object.__setattr__(self, "n_obs_per_chunk", rows)  # JSON has no numbers of NumPy

    @property
    def codecs(self) -> Any:
        """The Zarr codecs."""
        if self.compressors is not None:
            return self.compressors
        from zarr.codecs import BloscCodec

        return (BloscCodec(cname="lz4", clevel=3, shuffle="shuffle", blocksize=_BLOCK if self.align_rows else 0),)


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
    element_bytes = dtype.itemsize + index_dtype.itemsize
    shard = int(rows_of_size(form.shard_size, "shard_size", per_row * element_bytes) * per_row)
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
        shard=rows_of_size(form.shard_size, "shard_size", int(np.prod(row_shape)) * dtype.itemsize),
        compressors=form.codecs,
        attributes={"encoding-type": "array", "encoding-version": "0.2.0"},
    )


_SPARSE = ("csr_matrix", "csc_matrix")


def write_sharded(
    group: Any,
    adata: Any,
    *,
    n_obs_per_chunk: int = 64,
    shard_size: int | str = "1GB",
    compressors: Iterable[Any] | None = None,
    key: str | None = None,
    align_rows: bool = True,
) -> None:
    """Write an AnnData into a Zarr v3 group, in chunks of rows.

    X, layers and obsm are stored in chunks of `n_obs_per_chunk` rows; CSC matrices among them are converted to CSR.
    anndata writes everything else.

    Args:
        group: Zarr v3 group, or a path to create one.
        adata: the AnnData, in memory.
        n_obs_per_chunk: rows of a chunk. A CSR matrix with `align_rows=False` gets chunks with the average number of
            elements in that many rows.
        shard_size: of a file: rows (1000 or "1000"), or decoded bytes as text with a unit, for example "1GB".
        compressors: Zarr codecs; None = Blosc with lz4 at level 3, byte shuffle and blocks of 64 KiB.
        key: name inside the group; None = the group itself, whose store is cleared first.
        align_rows: align the chunk edges of CSR matrices to row edges, by explicit zeros after some rows. The array
            `row_nnz` beside `indptr` separates them from true elements. Readers that do not know it see the zeros.

    Raises:
        ConfigError: there are no rows, the group is not Zarr v3, its path is a file, or a number is invalid.
        MissingExtraError: anndata or zarr is not installed.
    """
    codecs = codecs_of(compressors, "compressors")
    form = MatrixFormat(
        n_obs_per_chunk=n_obs_per_chunk, shard_size=shard_size, compressors=codecs, align_rows=align_rows
    )
    if not hasattr(adata, "obs_names"):
        raise ConfigError(f"write_sharded needs an AnnData, got {type(adata).__name__}: anndata.AnnData(X) makes one")
    anndata, zarr = load_anndata(), load_zarr()
    if isinstance(group, (str, os.PathLike)):
        refuse_file(Path(group), "a store")
        group = zarr.open_group(group, mode="a", zarr_format=3)
    if not hasattr(group, "store_path"):
        raise ConfigError(f"write_sharded needs a Zarr group, or the path of one, got {type(group).__name__}")
    if group.metadata.zarr_format != 3:
        raise ConfigError(f"write_sharded needs a Zarr v3 group, got v{group.metadata.zarr_format}: {group}")
    if group.store.read_only:
        raise ConfigError(f"{group.store_path} was opened read-only: write_sharded needs a writeable group")
    if group.metadata.consolidated_metadata is not None:  # written before; anndata refuses such metadata
        group = zarr.open_group(group.store, path=group.path, mode="r+", use_consolidated=False)
    if not adata.n_obs:
        raise ConfigError(f"write_sharded needs an AnnData with rows, got {adata.shape}")
    with quiet_anndata():
        anndata.experimental.write_dispatched(
            group, "/" if key is None else key, adata, callback=partial(_write, form=form, num_rows=adata.n_obs)
        )
        zarr.consolidate_metadata(group.store)


_SETTINGS = {  # each version of anndata has some of these
    "write_csr_csc_indices_with_min_possible_dtype": True,
    "zarr_write_format": 3,
    "auto_shard_zarr_v3": False,
    "allow_write_nullable_strings": True,
}


def refuse_file(path: Path, what: str, mend: str = "") -> None:
    """Refuse a place for a folder that is a file, or lies below one.

    Raises:
        ConfigError: it does; the message names the file.
    """
    for place in (path, *path.parents):
        if place.is_file():
            where = f"{path} is" if place == path else f"{path} lies in {place}, which is"
            raise ConfigError(f"{where} a file, but {what} is a folder: choose another path{mend}")


@contextmanager
def quiet_anndata() -> Iterator[None]:
    """Set anndata to Zarr v3 with compact columns, and silence warnings about future defaults."""
    settings = load_anndata().settings
    with warnings.catch_warnings():  # it also warns about settings that it will remove
        warnings.simplefilter("ignore")
        differing = {name: value for name, value in _SETTINGS.items() if getattr(settings, name, value) != value}
        with settings.override(**differing):
            yield


def _write(
    write: Any, store: Any, name: str, elem: Any, *,
    iospec: Any, form: MatrixFormat, num_rows: int, dataset_kwargs: Any = None,
) -> None:  # fmt: skip
    """Write the row matrices; leave the rest to anndata."""
    parent = f"{store.name}/{name}".replace("//", "/").split("/")
    rows = name == "X" or parent[-2:-1] in (["layers"], ["obsm"])
    rows = rows and getattr(elem, "shape", ())[:1] == (num_rows,) and "raw" not in parent
    if rows and iospec.encoding_type in _SPARSE:
        matrix = (elem.to_memory() if hasattr(elem, "to_memory") else elem).tocsr()
        lengths, num_cols = np.diff(matrix.indptr).astype(np.int64), matrix.shape[1]
        pads = create_sparse(store, name, lengths=lengths, num_cols=num_cols, dtype=matrix.dtype, form=form).pads
        data, indices = matrix.data, matrix.indices
        if pads is not None:
            data, indices = pad_rows(data, indices, lengths, pads, num_cols)
        for part, values in (("data", data), ("indices", indices)):
            write_whole(store[name][part], values, keep_zeros=True)
    elif rows and iospec.encoding_type == "array" and elem.dtype.kind in "biufc":
        rows_held: NDArray = np.asarray(elem)
        shape, dtype = rows_held.shape[1:], rows_held.dtype
        array = create_dense(store, name, num_rows=num_rows, row_shape=shape, dtype=dtype, form=form)
        write_whole(array, rows_held)
    else:
        write(store, name, elem, dataset_kwargs=dict(dataset_kwargs or {}))
