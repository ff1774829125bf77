"""CPU per row, crop, sample and step: this checkout against another revision of itself, in one run.

    python bench/revisions.py REVISION [--rounds 7] [--loops rows crops samples step] [--json FILE]

Each loop is an epoch over a small store, in a fresh process with the `src` of one checkout first on its path; the
other revision is checked out into a temporary git worktree. The first epoch compiles, opens and warms up,
the second one is measured: CPU time of all threads of the process. Rounds alternate between the two, so that a busy
machine disturbs both alike; ratios are taken round by round, this checkout over the other.

Only names that both revisions have can be used here, so the loops are those of the first pages of the documentation.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from _common.header import print_machine
from _common.spreads import ratios, spread

ROOT = Path(__file__).resolve().parents[1]
BATCH, CROPS = 256, 4
ROWS, SAMPLES = 60_000, 200_000


def make_stores(folder: Path) -> None:
    """Write what the loops read: sparse rows, a volume, dense samples."""
    import anndata
    import numpy as np
    import scipy.sparse
    import zarr

    from rankwise.data.rows import write_sharded

    cells = scipy.sparse.random(ROWS, 2000, 0.05, format="csr", dtype="f4", random_state=0)
    write_sharded(zarr.open_group(folder / "rows.zarr", mode="w"), anndata.AnnData(cells))
    numbers = np.random.default_rng(0)
    volume = numbers.integers(0, 200, (256, 512, 512), dtype="u2")
    zarr.create_array(folder / "volume.zarr", data=volume, chunks=(32, 64, 64), shards=(128, 256, 256))
    samples = numbers.random((SAMPLES, 32), dtype="f4")
    zarr.create_array(folder / "samples.zarr", data=samples, chunks=(64, 32), shards=(4096, 32))


def over_rows() -> tuple[Iterable[Any], int]:
    """Batches of sparse rows, and how many rows an epoch has."""
    from rankwise import Order, World
    from rankwise.data.rows import OrderedLoader, RowSource

    rows = RowSource("rows.zarr")
    order = Order(rows, batch_size=BATCH, seed=1)
    return OrderedLoader(rows, order=order, world=World.single(), device=None), ROWS


def over_crops() -> tuple[Iterable[Any], int]:
    """Batches of crops that fill a volume."""
    from rankwise import Order, World
    from rankwise.data import crops

    index = crops.CropIndex("volume.zarr", shape=(64, 64, 64))
    pipeline = getattr(crops, "IndexPipeline", crops.Pipeline)  # its name in older revisions
    order = Order(index, batch_size=CROPS, seed=1)
    return pipeline(index, order=order, world=World.single(), device=None), index.num_samples


def over_samples(device: str | None = None) -> tuple[Iterable[Any], int]:
    """Batches of dense samples."""
    from rankwise import Order, World
    from rankwise.data.samples import ArraySource, SampleLoader

    source = ArraySource({"x": "samples.zarr"})
    order = Order(source, batch_size=BATCH, seed=1)
    return SampleLoader(source, order=order, world=World.single(), device=device), SAMPLES


def train() -> int:
    """An epoch of `Trainer.fit` over the samples; returns its steps."""
    import torch

    from rankwise import Trainer

    loader, _ = over_samples("cpu")
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    trainer = Trainer(model, optimizer, lambda m, b: (m(b["x"])[:, 0] - 1) ** 2, run=False, progress=False)
    return trainer.fit(loader, epochs=1).num_steps


def epoch_of(make: Callable[[], tuple[Iterable[Any], int]]) -> int:
    """Go through an epoch; returns how many there were of what is counted."""
    loader, count = make()
    for _ in loader:
        pass
    return count


LOOPS: dict[str, tuple[str, Callable[[], int]]] = {
    "rows": ("row", lambda: epoch_of(over_rows)),
    "crops": ("crop", lambda: epoch_of(over_crops)),
    "samples": ("sample", lambda: epoch_of(over_samples)),
    "step": ("step", train),
}


def join_readers() -> None:
    """Wait for the last reads of loaders that are gone: revisions differ in whether `del` waits for them."""
    for thread in threading.enumerate():
        if thread.name == "rankwise-reader":
            thread.join(60)


def child(loop: str) -> None:
    """Print CPU microseconds of one unit of a loop."""
    warnings.simplefilter("ignore")
    run = LOOPS[loop][1]
    run()
    join_readers()
    # a full collection walks all imported modules (0.2 s with torch) and may fall into either measurement by chance
    gc.collect()
    gc.freeze()
    begun = time.process_time()
    count = run()
    join_readers()
    print((time.process_time() - begun) / count * 1e6)


def measure(checkout: Path, loop: str, folder: Path) -> float:
    """CPU microseconds of one unit, in a process of its own with the code of a checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", loop]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(ROOT / "bench")])}
    told = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(told.split()[-1])


def main() -> None:
    """Measure both revisions in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a commit, branch or tag to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loops", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--json", type=Path, help="write all measurements there")
    options = parser.parse_args()
    print_machine()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, other = Path(name), Path(name) / "other"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", other, options.revision], cwd=ROOT, check=True)
        try:
            make_stores(folder)
            print(f"| CPU µs | this checkout | {options.revision} | ratio |\n|---|---|---|---|")
            for loop in options.loops:
                both: dict[str, list[float]] = {"here": [], "other": []}
                for _ in range(options.rounds):
                    both["here"].append(measure(ROOT, loop, folder))
                    both["other"].append(measure(other, loop, folder))
                found[loop] = both
                here, there = map(spread, both.values())
                ratio = ratios(both["here"], both["other"])
                print(f"| a {LOOPS[loop][0]} | {here} | {there} | {ratio} |", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
