"""Make ``pbmc68k_reduced.h5ad``, the example's data, out of the file that scanpy ships; it lies beside this script.

    python examples/cells/make_data.py

Only this script wants scanpy installed (any version that ships `datasets/10x_pbmc68k_reduced.h5ad`; made with 1.11.5).

Origin: 700 blood cells of one donor and 765 genes, a part of "Fresh 68k PBMCs (Donor A)" of 10x Genomics (Zheng et al.,
Nature Communications 8, 14049, 2017), as scanpy ships it. scanpy is under the BSD 3-clause licence, which lies beside
this script as ``LICENSE.scanpy``.

Kept is the matrix `raw`: log(1 + normalised counts), rounded by those who made it to three decimals, sparse; and of the
table of observations the kind of each cell (there `bulk_labels`: the kind of sorted cells that the cell is most like).
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import anndata
import numpy as np
import pandas as pd

MADE = Path(__file__).resolve().parent / "pbmc68k_reduced.h5ad"


def main() -> None:
    """Read scanpy's file, write ours."""
    found = find_spec("scanpy")
    if found is None or found.origin is None:
        raise SystemExit("scanpy is not installed: pip install scanpy")
    shipped = Path(found.origin).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"
    with warnings.catch_warnings(action="ignore"):  # the file is old; anndata says so
        cells = anndata.read_h5ad(shipped)
    rows = cells.raw.X.tocsr().astype(np.float32)
    rows.sort_indices()
    obs = pd.DataFrame({"cell_type": cells.obs["bulk_labels"]})
    made = anndata.AnnData(rows, obs=obs, var=pd.DataFrame(index=cells.raw.var_names.astype(str)))
    made.write_h5ad(MADE, compression="gzip", compression_opts=9)
    print(f"{MADE}: {made.n_obs} cells, {made.n_vars} genes, {rows.nnz} values, {MADE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
