"""`write_sharded`: writes one AnnData as a store that training reads fast."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from rankwise.data.rows.datasets import load_anndata
from rankwise.data.rows.output.codecs import codecs_of
from rankwise.data.rows.output.matrices import MatrixFormat, write_dense, write_sparse
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError

__all__ = ["quiet_anndata", "write_sharded"]

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
        ConfigError: there are no rows, the group is not Zarr v3, or a number is invalid.
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
        matrix = elem.to_memory() if hasattr(elem, "to_memory") else elem
        write_sparse(store, name, matrix.tocsr(), form)
    elif rows and iospec.encoding_type == "array" and elem.dtype.kind in "biufc":
        write_dense(store, name, np.asarray(elem), form)
    else:
        write(store, name, elem, dataset_kwargs=dict(dataset_kwargs or {}))
