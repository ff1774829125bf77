"""Memory and time to the first batch of a new process that selects rows of a very large store in one way."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from _common.machine import peak_bytes, resident_bytes, restart_peak

BATCH = 4_096
Make = Callable[[str, int], Any]


def whole(store: str, _: int) -> Any:
    """All rows, X only."""
    return _open(store)


def column(store: str, _: int) -> Any:
    """All rows, with a column of labels."""
    return _open(store, obs=("cell_type",))


def mask(store: str, num_rows: int) -> Any:
    """One row of three, by a mask (its byte for each row is counted)."""
    chosen = np.zeros(num_rows, dtype=np.bool_)
    chosen[::3] = True
    return _open(store, rows=chosen)


def split(store: str, _: int) -> Any:
    """80 of 100 rows, whole donors; the other part is held too."""
    parts = _open(store).split(by="donor", fractions={"train": 0.8, "val": 0.2})
    KEPT.append(parts)
    return parts["train"]


def split_rows(store: str, _: int) -> Any:
    """80 of 100 rows, each by its number; the other part is held too."""
    parts = _open(store).split(by="row", fractions={"train": 0.8, "val": 0.2})
    KEPT.append(parts)
    return parts["train"]


def balanced(store: str, _: int) -> Any:
    """Draws of all rows, each cell type as likely, 32 from one chunk."""
    return _open(store).drawn(balance="cell_type", together=32)


CASES: dict[str, Make] = {made.__name__: made for made in (whole, column, mask, split, split_rows, balanced)}
KEPT: list[Any] = []  # what a user would hold on to


def _open(store: str, **options: Any) -> Any:
    from rankwise.data.rows import RowSource

    return RowSource(store, **options)


def measure(make: Make, store: str, num_rows: int, batches: int, *, rank: int, num_ranks: int) -> dict[str, Any]:
    """Take rows, and read on from the middle of an epoch; memory counts from after the imports on, in bytes."""
    import anndata  # noqa: F401
    import numba  # noqa: F401
    import pandas as pd  # noqa: F401
    import zarr  # noqa: F401

    from rankwise import Order
    from rankwise.data.rows import OrderedLoader

    warnings.simplefilter("ignore")  # of anndata, about coming defaults
    before, begun = restart_peak(), time.perf_counter()
    source = make(store, num_rows)
    taken = {"take_s": time.perf_counter() - begun, "take_peak_bytes": peak_bytes() - before}
    gc.collect()
    taken["take_held_bytes"] = resident_bytes() - before
    order = Order(source, batch_size=BATCH)
    place = SimpleNamespace(rank=rank, world_size=num_ranks, device=None)  # ranks that never meet
    loader = OrderedLoader(source, order=order, device=None, world=place)
    loader.load_state_dict(order.state_at(epoch=0, position=len(source) // 2).to_json())
    steps = iter(loader)
    _take(steps)
    first_s = time.perf_counter() - begun
    # the mean: steps of a window are read as one, while one of them is waited for
    seen, decoded = [_take(steps) for _ in range(batches)], source.stats.decoded_bytes
    del steps
    return {
        "imports_bytes": before,
        **taken,
        "samples": len(source),
        "first_batch_s": first_s,
        "batch_cpu_s": statistics.fmean(cpu for cpu, _ in seen),
        "batch_wall_s": statistics.fmean(wall for _, wall in seen),
        "decoded_bytes_per_batch": decoded / (batches + 1),
        "cache_bytes": source.cache.kept_bytes,
        "held_bytes": resident_bytes() - before,
        "peak_bytes": peak_bytes() - before,
    }


def _take(steps: Any) -> tuple[float, float]:
    begun, spent = time.perf_counter(), time.process_time()
    for batch in next(steps):
        if batch["X"].shape[0] == 0:
            raise RuntimeError("an empty batch was read")
    return time.process_time() - spent, time.perf_counter() - begun


if __name__ == "__main__":
    name, store, *words = sys.argv[1:]
    num_rows, batches, rank, num_ranks = map(int, words)
    print(json.dumps(measure(CASES[name], store, num_rows, batches, rank=rank, num_ranks=num_ranks)))
