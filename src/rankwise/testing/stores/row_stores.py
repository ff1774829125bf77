"""Stores for several tests of rows, and their content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.testing.stores.small_rows import random_csr, write_anndata, write_csr

NUM_COLS = 11


@dataclass(frozen=True)
class RowStores:
    """Paths of stores, and their concatenated rows."""

    places: list[str]
    matrices: dict[str, Any]
    obs: Any

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all stores."""
        return len(self.obs)

    def dense(self, name: str) -> NDArray:
        """Return a matrix of all rows, dense."""
        import scipy.sparse as sp

        whole = self.matrices[name]
        found: NDArray = whole.toarray() if sp.issparse(whole) else whole
        return found


def _one(num_rows: int, seed: int, dtype: str) -> Any:
    import anndata
    import pandas as pd

    rng = np.random.default_rng(seed)
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(rng.choice(["a", "b", "c"], num_rows), categories=["c", "a", "b"][: 2 + seed % 2]),
            "donor": pd.Categorical([f"donor {seed}/{row // 5}" for row in range(num_rows)]),
            "n": np.arange(num_rows) + 1000 * seed,
        },
        index=[f"{seed}-{row}" for row in range(num_rows)],
    )
    var = pd.DataFrame(index=[f"gene{k}" for k in range(NUM_COLS)])
    made = anndata.AnnData(X=random_csr(num_rows, NUM_COLS, seed=seed, dtype=dtype), obs=obs, var=var)
    made.layers["counts"] = random_csr(num_rows, NUM_COLS, seed=seed + 100, dtype="u2")
    made.layers["full"] = rng.integers(0, 99, (num_rows, NUM_COLS)).astype("i4")
    made.obsm["pca"] = rng.random((num_rows, 2, 3)).astype("f8")
    return made


def make_stores(
    folder: Path,
    sizes: Sequence[int] = (53, 40),
    *,
    zarr_format: int = 3,
    sharded: bool = False,
    dtype: str = "f4",
    chunk: int | None = None,
) -> RowStores:
    """Write AnnData stores with these numbers of rows; return their paths and joint content.

    Args:
        folder: folder for the stores.
        sizes: number of rows of each store.
        zarr_format: 2 or 3.
        sharded: let anndata shard its arrays.
        dtype: dtype of X.
        chunk: rewrite X (Zarr 3) in chunks of so many elements, four per shard.
    """
    import pandas as pd
    import scipy.sparse as sp

    parts = [_one(num, seed, dtype) for seed, num in enumerate(sizes)]
    places = [
        write_anndata(part, folder / f"{number}.zarr", zarr_format=zarr_format, sharded=sharded)
        for number, part in enumerate(parts)
    ]
    for part, place in zip(parts, places, strict=True):
        if chunk is not None:
            _cut_anew(part.X, place, chunk)
    matrices = {
        "X": sp.vstack([part.X for part in parts]).tocsr(),
        "layers/counts": sp.vstack([part.layers["counts"] for part in parts]).tocsr(),
        "layers/full": np.concatenate([part.layers["full"] for part in parts]),
        "obsm/pca": np.concatenate([part.obsm["pca"] for part in parts]),
    }
    return RowStores(places, matrices, pd.concat([part.obs.astype(object) for part in parts]))


def _cut_anew(matrix: Any, place: str, chunk: int) -> None:
    import zarr

    group = zarr.open_group(place, mode="a", use_consolidated=False)
    del group["X"]
    write_csr(group, "X", matrix, chunk=chunk, shard=4 * chunk)
    Path(place, "zarr.json").write_text(_without_consolidated(Path(place, "zarr.json").read_text()))


def _without_consolidated(document: str) -> str:
    """Remove anndata's consolidated metadata, which is outdated."""
    found = json.loads(document)
    found.pop("consolidated_metadata", None)
    return json.dumps(found)
