"""Small stores of rows that contain their own id, to be combined in any selection."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.testing.stores.small_rows import write_anndata

__all__ = ["BRICK_LAYOUTS", "Bricks", "make_bricks"]

BRICK_LAYOUTS = ("plain", "sharded", "elements", "rows", "dense", "dense v2")
_SIZES = (1, 2, 7, 19, 40, 64)
_NUM_COLS = 9
_DTYPES = ("f4", "u2", "f8", "i4", "u1", "f4")


@dataclass(frozen=True, eq=False, repr=False)
class Bricks:
    """Stores by layout; matrix rows and kinds by row id."""

    places: dict[str, list[str]]
    rows: NDArray
    kinds: NDArray
    sizes: tuple[int, ...] = _SIZES

    def __repr__(self) -> str:
        return f"Bricks(of {', '.join(map(str, self.sizes))} rows)"

    def who(self, numbers: Sequence[int]) -> IntArray:
        """Return the row ids of these bricks, concatenated."""
        return np.concatenate([1000 * number + np.arange(self.sizes[number]) for number in numbers])

    def wanted(self, who: Any) -> NDArray:
        """Return the rows with these ids, float64[n, columns]."""
        found: NDArray = self.rows[np.asarray(who, dtype=np.int64)]
        return found


def make_bricks(folder: Path) -> Bricks:
    """Write six stores of 1 to 64 rows in every layout.

    ``plain`` and ``sharded`` are written by anndata, ``elements`` as by annbatch (chunks of so many elements), ``rows``
    has chunk edges on row edges, ``dense`` and ``dense v2`` (Zarr 2) are arrays. Matrices have empty rows, rows with
    stored zeros, and a dtype for each size. ``obs`` has `who`, `kind` (four categories, in runs of at least five rows
    if the store is that long) and `donor`.
    """
    rows, kinds = np.zeros((1000 * len(_SIZES), _NUM_COLS)), np.full(1000 * len(_SIZES), "", dtype=object)
    places: dict[str, list[str]] = {layout: [] for layout in BRICK_LAYOUTS}
    for number, size in enumerate(_SIZES):
        made = _brick(number, size)
        rows[1000 * number : 1000 * number + size] = made.X.toarray()
        kinds[1000 * number : 1000 * number + size] = made.obs["kind"].astype(str)
        for layout in BRICK_LAYOUTS:
            places[layout].append(_write(made, folder / f"{number}-{layout}.zarr", layout))
    return Bricks(places, rows, kinds)


def _brick(number: int, size: int) -> Any:
    import anndata
    import pandas as pd

    obs = pd.DataFrame(
        {
            "who": 1000 * number + np.arange(size),
            "kind": pd.Categorical.from_codes(
                np.minimum(np.arange(size) // 5, size // 5 - 1).clip(0) % 4, list("dbca")
            ),
            "donor": pd.Categorical([f"{number}/{row // 3}" for row in range(size)]),
        },
        index=[f"{number}-{row}" for row in range(size)],
    )
    return anndata.AnnData(_matrix(number, size), obs=obs, var=pd.DataFrame(index=[f"g{k}" for k in range(_NUM_COLS)]))


def _matrix(number: int, size: int) -> Any:
    import scipy.sparse

    rng = np.random.default_rng(number)
    held = rng.random((size, _NUM_COLS)) < 0.4
    held[rng.random(size) < 0.15] = False
    values = (np.arange(size * _NUM_COLS).reshape(size, _NUM_COLS) + 17 * number) % 250 + 1
    values[rng.random(size) < 0.15] = 0  # stored explicitly
    row, col = np.nonzero(held)
    made = scipy.sparse.csr_matrix((size, _NUM_COLS), dtype=_DTYPES[number])
    made.indptr = np.concatenate([[0], np.cumsum(held.sum(axis=1))]).astype(np.int32)
    made.indices, made.data = col.astype(np.int32), values[row, col].astype(_DTYPES[number])
    return made


def _write(made: Any, place: Path, layout: str) -> str:
    import zarr

    from rankwise.data.rows.output import write_sharded

    if layout in ("elements", "rows"):
        group = zarr.open_group(str(place), mode="w", zarr_format=3)
        write_sharded(group, made, n_obs_per_chunk=4, shard_size=12, align_rows=layout == "rows")
        return os.fspath(place)
    copy = made.copy()
    if layout.startswith("dense"):
        copy.X = made.X.toarray()
    return write_anndata(copy, place, zarr_format=2 if layout == "dense v2" else 3, sharded=layout == "sharded")
