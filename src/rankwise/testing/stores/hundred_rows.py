"""A hundred rows that contain their own number, and a loader of them with a sampler."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from rankwise.data.rows import Loader

_NUM_COLS = 6


def hundred_obs() -> pd.DataFrame:
    """Return the table of their observations: the number of each row."""
    import pandas as pd

    return pd.DataFrame({"n": np.arange(100)})


def write_hundred(folder: Path) -> str:
    """Write them as a Zarr array, float32[100, 6], and return its path; the first element of row i is 6 i."""
    import zarr

    data = np.arange(100 * _NUM_COLS, dtype="f4").reshape(100, _NUM_COLS)
    zarr.create_array(str(folder), data=data, chunks=(10, _NUM_COLS))
    return str(folder)


def loader_of_hundred(place: str, sampler: Any = None, **options: Any) -> Loader:
    """Return a loader of the array that `write_hundred` wrote.

    Args:
        place: path of the array.
        sampler: None = five requests of 20 rows per epoch, with two batches each, seeded.
        **options: options of `Loader`.
    """
    import zarr

    from rankwise.data.rows import Loader
    from rankwise.data.rows.samplers import RandomSampler

    sampler = RandomSampler(5, 4, 10, rng=0) if sampler is None else sampler
    loader = Loader(batch_sampler=sampler, return_index=True, **options)
    return loader.add_dataset(zarr.open_array(place, mode="r"), obs=hundred_obs())


def rows_of(batches: Iterable[Any]) -> list[list[int]]:
    """Return the row numbers of each batch, after a check that elements and observations agree."""
    found = []
    for batch in batches:
        np.testing.assert_array_equal(batch["X"][:, 0], _NUM_COLS * batch["index"])
        np.testing.assert_array_equal(batch["obs"]["n"], batch["index"])
        found.append(batch["index"].tolist())
    return found
