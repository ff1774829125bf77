"""The parts of the benchmark: given requests, whole epochs through the loaders, and epochs with steps."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from _common.verdicts import Verdict

from _rows import goals, stores
from _rows.comparison import Comparison, compare
from _rows.overlap import run_overlap
from _rows.process import ReaderProcess
from _rows.readers import KINDS
from _rows.tables import print_comparison
from _rows.task import Task

Found = tuple[list[dict[str, Any]], list[Verdict]]
LOADER_RUNS, GENES_RUN, OVERLAP_RUN, WINDOW_BYTES = (32, 64, 512), 64, 512, 128 << 20


def requests(chosen: argparse.Namespace, processes: Mapping[str, ReaderProcess], *, torch: bool) -> Found:
    """Runs of rows from anywhere, the same for all readers."""
    facts, verdicts = [], []
    for layout, run in itertools.product(chosen.layouts, chosen.runs):
        task = make_task(chosen, layout, run)
        rows = chosen.requests * (task.request // run * run)
        found = Comparison(title=title_of(task, layout), layout=layout, task=task, count=chosen.requests, num_rows=rows)
        compare(found, _readers(found, processes), processes, chosen.rounds)
        print_comparison(found)
        facts.append(found.facts())
        verdicts += goals.of_comparison(found, torch=torch, full=chosen.scale == "full")
    return facts, verdicts


def loaders(chosen: argparse.Namespace, processes: Mapping[str, ReaderProcess]) -> Found:
    """Epochs through the public loaders."""
    facts, verdicts = [], []
    for layout, run in itertools.product(chosen.layouts, LOADER_RUNS):
        task = make_task(chosen, layout, run)
        found = Comparison(
            title=f"epochs of {title_of(task, layout)}",
            layout=layout, task=task, count=1, num_rows=task.shape[0], base="loader",
        )  # fmt: skip
        compare(found, _loaders(processes, genes=task.sparse and run == GENES_RUN), processes, chosen.rounds)
        print_comparison(found)
        facts.append(found.facts())
        verdicts += goals.of_loaders(found, full=chosen.scale == "full")
    return facts, verdicts


def overlap(chosen: argparse.Namespace, processes: Mapping[str, ReaderProcess]) -> Found:
    """Epochs with steps."""
    facts, verdicts = [], []
    for layout in chosen.layouts:
        # chunks of a window, no more: a large store leaves nothing for the next epoch either
        task = replace(make_task(chosen, layout, OVERLAP_RUN), cache_bytes=WINDOW_BYTES)
        names = [name for name in _loaders(processes) if KINDS[name].program != "memory"]
        found = run_overlap(f"epochs of {title_of(task, layout)}", task, names, processes, chosen.rounds)
        found.print()
        facts.append(found.facts())
        verdicts += goals.of_overlap(found, full=chosen.scale == "full")
    return facts, verdicts


def make_task(chosen: argparse.Namespace, layout: str, run: int) -> Task:
    """Return the task of a layout and a length of runs."""
    scale = stores.SCALES[chosen.scale]
    sparse = layout != "dense"
    request = scale.request // 2 if run == 1 else scale.request
    return Task(
        store=stores.store_of(chosen.folder, chosen.scale, layout),
        baseline=stores.store_of(chosen.folder, chosen.scale, "annbatch" if sparse else "dense"),
        shape=(scale.rows, scale.cols if sparse else scale.dense_cols),
        sparse=sparse,
        run=run,
        request=request,
        batch=min(scale.batch, request),
        genes=min(scale.genes, scale.cols if sparse else scale.dense_cols),
        threads=chosen.threads,
    )


def title_of(task: Task, layout: str) -> str:
    """Return the title of a comparison."""
    runs = "single random rows" if task.run == 1 else f"runs of {task.run} rows"
    return f"{stores.LAYOUTS[layout]} ({stores.stored_bytes(task.store) / 1e6:.3g} MB), {runs}"


def _readers(found: Comparison, processes: Mapping[str, ReaderProcess]) -> list[str]:
    """Return the readers of a comparison; dense rows of CSR matrices are compared for runs of 512 rows only."""
    dense = found.task.sparse and found.task.run == 512
    outputs = ("nothing", "rows", "dense", "genes") if dense else ("nothing", "rows")
    there = [name for name, kind in KINDS.items() if kind.program in processes and not kind.is_epoch]
    chosen = [name for name in there if KINDS[name].output in outputs]
    return [name for name in chosen if name != "ours-unaided" or found.task.run == 512]


def _loaders(processes: Mapping[str, ReaderProcess], *, genes: bool = False) -> list[str]:
    """Return the loaders of a comparison; those of chosen genes only for runs of an `OrderedLoader`'s chunks."""
    there = [name for name, kind in KINDS.items() if kind.is_epoch and kind.program in processes]
    return [name for name in there if genes or KINDS[name].output == "rows"]
