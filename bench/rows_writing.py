"""Memory and time of writing a collection, at several memory budgets.

    python bench/rows_writing.py [--rows 1e6] [--budgets 64MB 2GB] [--folder ...] [--json FILE] [--quick]

The input is one h5ad file with 50 of 2,000 genes in each row and 20 columns of observations, 4 of them text. Each
run is a new process; memory is its peak beyond what it holds after its imports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common.header import print_machine
from _common.machine import describe, load
from _rows.write_case import DATASET_ROWS

_MIB = 2**20
_HEAD = "| budget | peak beyond imports, MiB | s | rows/s |\n|---|---|---|---|"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rankwise-bench")
    parser.add_argument("--rows", type=lambda word: int(float(word)), default=1_000_000)
    parser.add_argument("--budgets", nargs="+", default=["64MB", "2GB"])
    parser.add_argument("--quick", action="store_true", help="5,000 rows: does it run?")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rows = 5_000
    return chosen


def main() -> None:
    chosen = options()
    print_machine()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    source = chosen.folder / f"cells-{chosen.rows}.h5ad"
    if not source.exists():
        half = source.with_suffix(".half.h5ad")
        run("make", half, chosen.rows)
        half.rename(source)
    print(f"\n{chosen.rows:,} rows in datasets of {DATASET_ROWS:,}; load {load():.1f}\n{_HEAD}")
    found: dict[str, Any] = {"machine": describe(), "rows": chosen.rows, "budgets": {}}
    for budget in chosen.budgets:
        out = chosen.folder / f"written-{budget}.zarr"
        shutil.rmtree(out, ignore_errors=True)
        seen = found["budgets"][budget] = json.loads(run("write", source, out, budget).splitlines()[-1])
        shutil.rmtree(out)
        rate = seen["rows"] / seen["wall_s"]
        print(f"| {budget} | {seen['peak_bytes'] / _MIB:.0f} | {seen['wall_s']:.1f} | {rate:,.0f} |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


def run(*words: Any) -> str:
    """Run the case in a fresh process, and return what it prints."""
    command = [sys.executable, "-m", "_rows.write_case", *map(str, words)]
    return subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
