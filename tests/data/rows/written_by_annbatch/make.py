"""Made the collection beside this file, with annbatch 0.3.1 and Python 3.12 by ``python make.py``.

Values are arithmetic in the number of the row, so that tests know every one of them.
"""

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from annbatch import DatasetCollection

NUM_ROWS, NUM_COLS = (40, 21), 7


def matrix(rows):
    """Row n has the elements n + 1 + column where 3 divides n + column."""
    number, column = np.meshgrid(rows, np.arange(NUM_COLS), indexing="ij")
    return sp.csr_matrix(np.where((number + column) % 3 == 0, number + 1 + column, 0).astype("f4"))


def part(first, count):
    rows = np.arange(first, first + count)
    obs = pd.DataFrame({"n": rows, "kind": pd.Categorical.from_codes(rows % 3, ["a", "b", "c"])})
    obs.index = [f"cell{row}" for row in rows]
    made = anndata.AnnData(X=matrix(rows), obs=obs, var=pd.DataFrame(index=[f"g{k}" for k in range(NUM_COLS)]))
    made.obsm["pair"] = np.stack([rows, -rows], axis=1).astype("f4")
    return made


if __name__ == "__main__":
    names, first = [], 0
    for count in NUM_ROWS:
        names.append(f"part{first}.h5ad")
        part(first, count).write_h5ad(names[-1])
        first += count
    DatasetCollection("collection.zarr").add_adatas(
        names, n_obs_per_chunk=8, shard_size=16, dataset_size=40, shuffle_chunk_size=5, rng=np.random.default_rng(0)
    )
