"""Rows of AnnData stores: `rankwise.data.rows` against annbatch with zarrs, on the same rows in one run.

    python bench/rows.py --annbatch PYTHON [--layouts ...] [--runs 1 32 64 256 512] [--rounds 9] [--json FILE] [--quick]

The stores (200,000 x 8,000 with 504 elements per row, and 200,000 x 512 dense, Blosc with lz4) are created in
`--folder` once and kept. annbatch needs Python >= 3.12, so it runs in the interpreter given by `--annbatch`; without
one it is left out. Each program runs in its own process; the rounds of all readers are interleaved in random order.
First, every reader must return the same rows as the whole matrix in memory. annbatch reads its own layout; with the
layout "aligned" we read the same matrix in ours. CPU time counts all threads of a reader. Ratios are taken round by
round; every number is a median with its quartiles.

Parts:
- "requests": all readers read the same random runs of neighbouring rows. Also measured are the floor (every touched
  chunk decoded once from memory on one thread) and our reader without zarrs.
- "loaders": the public loaders read whole epochs, with the same sampler arguments.
- "overlap": epochs with a step that sleeps for as long as a batch takes to load. The first epoch waits for its first
  batch and is reported apart. Loaders with `start_prefetch` read it once more, started half a second earlier.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from _common.header import print_machine
from _common.machine import cores, describe, load
from _common.verdicts import Verdict
from _rows import parts, stores
from _rows.annbatch_reader import versions
from _rows.process import ReaderProcess

PROGRAMS = ("ours", "unaided", "floor", "annbatch", "memory")
PARTS = ("requests", "loaders", "overlap")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rankwise-bench")
    parser.add_argument("--scale", choices=stores.SCALES, default="full")
    parser.add_argument("--layouts", nargs="+", choices=stores.LAYOUTS, default=list(stores.LAYOUTS))
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 32, 64, 256, 512], help="rows drawn together")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--annbatch", metavar="PYTHON", help="interpreter that has annbatch and zarrs")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=2, help="requests per round")
    parser.add_argument("--quick", action="store_true", help="tiny data, two rounds of one request: does it run?")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.scale, chosen.rounds, chosen.requests = "tiny", 2, 1
    most = stores.SCALES[chosen.scale].request // 2
    if not all(1 <= run <= most for run in chosen.runs):
        parser.error(f"--runs wants numbers from 1 to {most}, got {chosen.runs}")
    return chosen


def main() -> None:
    chosen = options()
    print_machine()
    theirs = annbatch_versions(chosen)
    found: dict[str, Any] = {"machine": describe(), "annbatch": theirs, "scale": chosen.scale}
    verdicts: list[Verdict] = []
    measures = {
        "requests": partial(parts.requests, torch="torch" in theirs),
        "loaders": parts.loaders,
        "overlap": parts.overlap,
    }
    with programs(chosen) as processes:
        for name in chosen.parts:
            found[name], seen = measures[name](chosen, processes)
            verdicts += seen
    print("\nGoals:", *verdicts, f"load at the end: {load():.1f}", sep="\n")
    if chosen.json:
        found["verdicts"] = [verdict.facts() for verdict in verdicts]
        chosen.json.write_text(json.dumps(found, indent=1))


def annbatch_versions(chosen: argparse.Namespace) -> dict[str, str]:
    """Return what annbatch's interpreter has; without annbatch and zarrs there, leave it out and say so."""
    if "annbatch" not in chosen.programs:
        return {}
    found = versions(chosen.annbatch) if chosen.annbatch else {}
    lacking = [name for name in ("annbatch", "zarrs") if name not in found]
    if not lacking:
        print("annbatch's interpreter:", ", ".join(f"{name} {version}" for name, version in found.items()), flush=True)
        if "torch" not in found:
            print("it has no torch: annbatch's dense rows are made by SciPy's toarray instead of to_dense")
        return found
    why = f"{chosen.annbatch} has no {' and no '.join(lacking)}" if found else f"{chosen.annbatch} cannot be run"
    print("annbatch is left out:", why if chosen.annbatch else "--annbatch names no interpreter that has it")
    chosen.programs = [name for name in chosen.programs if name != "annbatch"]
    return {}


@contextmanager
def programs(chosen: argparse.Namespace) -> Iterator[Mapping[str, ReaderProcess]]:
    """Start a process for each program."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(ReaderProcess(name, chosen.annbatch if name == "annbatch" else sys.executable))
            for name in chosen.programs
        }


if __name__ == "__main__":
    main()
