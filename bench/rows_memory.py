"""Memory and time to the first batch of a process that resumes in mid-epoch over very many rows.

    python bench/rows_memory.py [--rows 1e8] [--cases ...] [--ranks 2] [--batches 20] [--json FILE] [--quick]

The store has row pointers and label columns for any number of rows; its matrix is one real file under many names, so
that it fits any disk. Each case runs in a new process: all rows; with a label column; a third by mask; splits by
donor and by row; draws that balance cell types. Memory is counted beyond imports: peak and held memory while the rows
are selected, and after the batches, with a 256 MiB cache of decoded chunks and batches of 4,096 rows (16 MiB). With
`--ranks`, as many processes read their shares of all rows at the same time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common.header import print_machine
from _common.machine import describe, load
from _rows.scale_case import CASES
from _rows.scaled_store import ScaledStore

_MIB = 2**20
_HEAD = """
| rows | taken in s | peak, held MiB | first batch after s | peak, held MiB | CPU ms per batch | decoded MB |
|---|---|---|---|---|---|---|""".lstrip()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rankwise-bench")
    parser.add_argument("--rows", type=lambda word: int(float(word)), default=100_000_000)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ranks", type=int, default=2, help="processes of the last case; 0 leaves it out")
    parser.add_argument("--batches", type=int, default=20, help="batches after the first")
    parser.add_argument("--quick", action="store_true", help="100,000 rows, three batches: does it run?")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rows, chosen.batches = 100_000, 3
    return chosen


def main() -> None:
    chosen = options()
    print_machine()
    store = ScaledStore.of(chosen.rows).write(chosen.folder)
    print(f"\n{chosen.rows:,} rows; batches of 4,096; {chosen.batches} of them after the first; load {load():.1f}")
    print(_HEAD)
    found: dict[str, Any] = {"machine": describe(), "rows": chosen.rows, "cases": {}}
    for name in chosen.cases:
        (found["cases"][name],) = run(name, store, chosen)
        show(CASES[name].__doc__ or name, found["cases"][name])
    if chosen.ranks:
        found["ranks"] = run("whole", store, chosen, num_ranks=chosen.ranks)
        for rank, seen in enumerate(found["ranks"]):
            show(f"All rows, rank {rank} of {chosen.ranks}.", seen)
    print(f"imports alone: {imports_mib(found):.0f} MiB; load at the end: {load():.1f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


def run(name: str, store: str, chosen: argparse.Namespace, *, num_ranks: int = 1) -> list[dict[str, Any]]:
    """Run a case in as many processes as there are ranks, all at once."""
    words = [sys.executable, "-m", "_rows.scale_case", name, store, str(chosen.rows), str(chosen.batches)]
    started = [
        subprocess.Popen(
            [*words, str(rank), str(num_ranks)], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
        )
        for rank in range(num_ranks)
    ]
    answers = [process.communicate()[0] for process in started]
    for process in started:
        if process.returncode:
            raise RuntimeError(f"the case {name} ended with {process.returncode}")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def show(title: str, seen: dict[str, Any]) -> None:
    mib = {key: value / _MIB for key, value in seen.items() if key.endswith("_bytes")}
    print(
        f"| {title} ({seen['samples']:,}) | {seen['take_s']:.2f} | {mib['take_peak_bytes']:.0f}, "
        f"{mib['take_held_bytes']:.0f} | {seen['first_batch_s']:.2f} | {mib['peak_bytes']:.0f}, "
        f"{mib['held_bytes']:.0f} | {seen['batch_cpu_s'] * 1e3:.0f} | {seen['decoded_bytes_per_batch'] / 1e6:.0f} |",
        flush=True,
    )


def imports_mib(found: dict[str, Any]) -> float:
    measured = [*found["cases"].values(), *found.get("ranks", [])]
    return max(each["imports_bytes"] for each in measured) / _MIB


if __name__ == "__main__":
    main()
