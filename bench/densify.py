"""Sparse rows to dense batches: elements placed while chunks are decoded, against a second pass.

    python bench/densify.py [--rounds 7] [--rows 30000] [--json FILE]

A CSR matrix of 20,000 columns, 5 % of them set, whole numbers in float32, in the layout of `write_sharded`. An
`OrderedLoader` reads an epoch in batches of 256, to dense rows of all columns and of every tenth. Compared are

- fused: ``RowSource(dense=True)``: each element goes to its place in the batch while its chunk is decoded;
- in two passes: the loader's CSR batches, and a compiled loop (numba) that fills dense rows from them, as a user would
  write it.

Each measurement is the second epoch of a new process, in CPU time of all its threads. The two alternate; ratios are
taken round by round. The first epoch checks that both return the same batches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common.header import print_machine
from _common.spreads import ratios, spread

COLUMNS, SHARE, BATCH = 20_000, 0.05, 256
CASES = {"all": ("all 20,000 columns", 1), "tenth": ("every tenth column", 10)}
WAYS = {"fused": "fused", "passes": "in two passes"}


def make_store(place: Path, num_rows: int) -> None:
    """Write the matrix."""
    import anndata
    import scipy.sparse
    import zarr

    from rankwise.data.rows import write_sharded

    cells = scipy.sparse.random(num_rows, COLUMNS, SHARE, format="csr", dtype="f4", random_state=0)
    cells.data = np.ceil(cells.data * 10)
    write_sharded(zarr.open_group(place, mode="w"), anndata.AnnData(cells))


def loader_of(place: str, **choice: Any) -> Any:
    """A loader of the rows, as NumPy arrays or SciPy matrices."""
    from rankwise import Order, World
    from rankwise.data.rows import OrderedLoader, RowSource

    source = RowSource(place, **choice)
    order = Order(source, batch_size=BATCH, seed=1)
    return OrderedLoader(source, order=order, world=World.single(), device=None)


def fused(place: str, columns: np.ndarray) -> Iterator[np.ndarray]:
    """Dense batches by the loader."""
    for (batch,) in loader_of(place, dense=True, genes=None if len(columns) == COLUMNS else columns):
        yield batch["X"]


def passes(place: str, columns: np.ndarray) -> Iterator[np.ndarray]:
    """Dense batches out of CSR batches, in memory that is used again."""
    from numba import njit

    @njit(nogil=True)
    def fill(data: Any, indices: Any, indptr: Any, places: Any, out: Any) -> None:
        width = out.shape[1]
        for row in range(out.shape[0]):
            for column in range(width):
                out[row, column] = 0
            for at in range(indptr[row], indptr[row + 1]):
                to = places[indices[at]]
                if to < width:
                    out[row, to] = data[at]

    places = np.full(COLUMNS, len(columns), np.int32)
    places[columns] = np.arange(len(columns))
    memory = [np.empty((BATCH, len(columns)), np.float32) for _ in range(2)]
    for number, (batch,) in enumerate(loader_of(place)):
        rows = batch["X"]
        out = memory[number % 2][: rows.shape[0]]
        fill(rows.data, rows.indices, rows.indptr, places, out)
        yield out


def child(way: str, case: str, place: str) -> None:
    """Print CPU microseconds of a row, and a sum that tells whether both ways give the same."""
    warnings.simplefilter("ignore")
    columns = np.arange(0, COLUMNS, CASES[case][1])
    make = {"fused": fused, "passes": passes}[way]
    total = sum(float((number + 1) * batch.sum(dtype=np.float64)) for number, batch in enumerate(make(place, columns)))
    begun, num_rows = time.process_time(), 0
    for batch in make(place, columns):
        num_rows += len(batch)
    print(json.dumps([(time.process_time() - begun) / num_rows * 1e6, total]))


def main() -> None:
    """Measure both ways in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--json", type=Path, help="write all measurements there")
    options = parser.parse_args()
    print_machine()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        make_store(Path(name) / "rows.zarr", options.rows)
        print(f"| CPU µs per row | {' | '.join(WAYS.values())} | two passes / fused |\n|---|---|---|---|")
        for case, (title, _) in CASES.items():
            found[case] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                sums = set()
                for way, costs in found[case].items():
                    command = [sys.executable, __file__, "--child", way, case, f"{name}/rows.zarr"]
                    cost, total = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                    costs.append(cost)
                    sums.add(total)
                assert len(sums) == 1, f"both ways must give the same rows; sums {sums}"
            costs = " | ".join(str(spread(values)) for values in found[case].values())
            print(f"| {title} | {costs} | {ratios(found[case]['passes'], found[case]['fused'])} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
