"""Writes AnnData stores in chunks of rows."""

from __future__ import annotations

from rankwise.data.rows.output.codecs import codecs_of, pad_rows
from rankwise.data.rows.output.sharded import MatrixFormat, create_dense, create_sparse, quiet_anndata, write_sharded
from rankwise.data.rows.output.shards import ShardStream, SparseLayout, lay_out, parse_size, rows_of_size

__all__ = [
    "MatrixFormat",
    "ShardStream",
    "SparseLayout",
    "codecs_of",
    "create_dense",
    "create_sparse",
    "lay_out",
    "pad_rows",
    "parse_size",
    "quiet_anndata",
    "rows_of_size",
    "write_sharded",
]
