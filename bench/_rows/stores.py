"""The AnnData stores: one synthetic CSR matrix in two layouts and one dense matrix, kept between runs.

A row of the CSR matrix has a Poisson number of elements, one in each of as many equal column ranges.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LAYOUTS = {
    "annbatch": "CSR as annbatch writes it (chunks of 64 mean rows)",
    "aligned": "CSR with chunk edges on row edges",
    "dense": "dense as annbatch writes it",
}
ROWS_PER_CHUNK = 64
_SEED = 0
_BLOCK = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of the matrices, and of requests.

    Attributes:
        rows: of each matrix.
        cols: of the CSR matrix.
        per_row: elements of a row of it, on average.
        dense_cols: columns of the dense matrix.
        genes: columns that a reader of chosen ones gives.
        request: rows of a request; of single random rows half as many.
        batch: rows of a batch.
    """

    rows: int
    cols: int
    per_row: int
    dense_cols: int
    genes: int
    request: int
    batch: int


SCALES = {
    "tiny": Scale(rows=3_000, cols=200, per_row=12, dense_cols=16, genes=50, request=1_024, batch=256),
    "full": Scale(rows=200_000, cols=8_000, per_row=504, dense_cols=512, genes=2_000, request=16_384, batch=4_096),
}


def store_of(folder: Path, scale_name: str, layout: str) -> str:
    """Return the path of a store, which is written first if it is not there yet."""
    scale = SCALES[scale_name]
    store = folder / f"rows-{scale_name}-{layout}.zarr"
    finished = folder / f"rows-{scale_name}-{layout}.json"
    wanted = {**asdict(scale), "layout": layout, "rows_per_chunk": ROWS_PER_CHUNK, "made": 1}
    if not finished.exists() or json.loads(finished.read_text()) != wanted:
        finished.unlink(missing_ok=True)
        shutil.rmtree(store, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _write(store, scale, layout)
        finished.write_text(json.dumps(wanted))
    return str(store)


def stored_bytes(store: str) -> int:
    """Bytes that X takes on disk."""
    return sum(file.stat().st_size for file in Path(store, "X").rglob("*") if file.is_file())


def _write(store: Path, scale: Scale, layout: str) -> None:
    import anndata
    import pandas as pd

    from rankwise.data.rows import write_sharded

    matrix = _dense(scale) if layout == "dense" else _csr(scale)
    obs = pd.DataFrame(index=[f"c{row}" for row in range(scale.rows)])
    made = anndata.AnnData(X=matrix, obs=obs)
    write_sharded(store, made, n_obs_per_chunk=ROWS_PER_CHUNK, align_rows=layout == "aligned")


def _csr(scale: Scale):
    import scipy.sparse

    rng = np.random.default_rng(_SEED)
    lengths = np.clip(rng.poisson(scale.per_row, scale.rows), 1, scale.cols)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.empty(indptr[-1], dtype=np.int32)
    data = np.empty(indptr[-1], dtype=np.float32)
    for first in range(0, scale.rows, _BLOCK):
        given = lengths[first : first + _BLOCK]
        span = np.repeat(scale.cols // given, given)
        place = np.arange(given.sum()) - np.repeat(np.cumsum(given) - given, given)
        part = slice(indptr[first], indptr[first] + len(span))
        indices[part] = place * span + rng.integers(0, span)
        data[part] = np.round(rng.gamma(2, 1, len(span)) * 2) + 1
    return scipy.sparse.csr_matrix((data, indices, indptr), shape=(scale.rows, scale.cols))


def _dense(scale: Scale) -> np.ndarray:
    return np.random.default_rng(_SEED).random((scale.rows, scale.dense_cols), dtype=np.float32)
