"""Peak memory (beyond imports) and time of a new process that writes a collection."""

from __future__ import annotations

import json
import sys
import time
import warnings

from _common.machine import peak_bytes, restart_peak

COLUMNS, TEXTS, GENES, PER_ROW = 20, 4, 2_000, 50
DATASET_ROWS = 100_000  # a column of a dataset is held in memory as a whole


def make(path: str, num_rows: int) -> None:
    """Write the h5ad file that is the input: 50 of 2,000 genes a row, 20 columns of observations, 4 of unique text."""
    import anndata
    import numpy as np
    import pandas as pd
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    steps = rng.integers(1, GENES // PER_ROW, (num_rows, PER_ROW), dtype=np.int32)
    columns = np.cumsum(steps, axis=1, dtype=np.int32).reshape(-1)
    values = rng.integers(1, 20, columns.size).astype(np.float32)
    matrix = sp.csr_matrix((values, columns, np.arange(num_rows + 1) * PER_ROW), shape=(num_rows, GENES))
    obs = {f"number{k}": rng.random(num_rows) for k in range(COLUMNS - TEXTS)}
    obs |= {f"text{k}": [f"cell {row} of text {k}" for row in range(num_rows)] for k in range(TEXTS)}
    table = pd.DataFrame(obs, index=[f"cell{row}" for row in range(num_rows)])
    with warnings.catch_warnings(action="ignore"):  # anndata announces other defaults
        anndata.AnnData(matrix, obs=table).write_h5ad(path)


def measure(path: str, out: str, budget: str) -> dict[str, float]:
    """Write the collection."""
    import anndata  # noqa: F401
    import h5py  # noqa: F401
    import pandas as pd  # noqa: F401
    import zarr  # noqa: F401

    from rankwise.data.rows import DatasetCollection

    warnings.simplefilter("ignore")  # of a column beyond a very small budget
    before, begun = restart_peak(), time.perf_counter()
    made = DatasetCollection(out).add_adatas(
        [path], rng=0, memory_budget=budget, dataset_size=DATASET_ROWS, progress=False
    )
    rows = sum(entry["rows"] for entry in made.manifest["datasets"].values())
    wall_s = time.perf_counter() - begun
    return {"imports_bytes": before, "peak_bytes": peak_bytes() - before, "wall_s": wall_s, "rows": rows}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        print(json.dumps(measure(*sys.argv[2:])))
