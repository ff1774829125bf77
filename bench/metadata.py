"""Metadata of Zarr arrays: our parser against zarr-python's own metadata class, and what an import of zarr costs.

    python bench/metadata.py [--arrays 2000] [--rounds 7]

The documents are those of sharded arrays (zstd, crc32c index), each of another shape, so that no cache helps. Both
sides get parsed JSON. Imports are measured as CPU time of fresh processes that read one array's metadata through
`rankwise.data.store.read_meta`, without zarr and with ``import zarr`` before; a rank, and each worker of a DataLoader,
pays it once. Rounds alternate; medians and the range are printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

START = """
import sys, time
if sys.argv[2] == "zarr":
    import zarr
from rankwise.data.store import read_meta
read_meta(sys.argv[1])
assert ("zarr" in sys.modules) == (sys.argv[2] == "zarr")
print(time.process_time())
"""


def documents(folder: Path, count: int) -> list[dict]:
    import zarr

    zarr.create_array(folder / "a", shape=(1000, 4), chunks=(16, 4), shards=(256, 4), dtype="u2")
    one = json.loads((folder / "a/zarr.json").read_text())
    made = [copy.deepcopy(one) for _ in range(count)]
    for number, document in enumerate(made):
        document["shape"] = [1000 + number, 4]
    return made


def microseconds(parse: Callable[[dict], object], given: list[dict]) -> float:
    began = time.process_time()
    for document in given:
        parse(document)
    return (time.process_time() - began) / len(given) * 1e6


def start_s(folder: Path, which: str) -> float:
    command = [sys.executable, "-c", START, str(folder / "a"), which]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def line(name: str, values: list[float], unit: str) -> str:
    return f"{name:42} {statistics.median(values):8.4g} {unit:4} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrays", type=int, default=2000, help="documents of a round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    from zarr.core.metadata.v3 import ArrayV3Metadata

    from rankwise.data.store.meta.parser import parse_array

    sides = {
        "rankwise, a document": lambda document: parse_array(document, {}, zarr_format=3),
        "zarr-python's metadata class, a document": ArrayV3Metadata.from_dict,
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    starts: dict[str, list[float]] = {"nothing": [], "zarr": []}
    with tempfile.TemporaryDirectory() as folder:
        made = documents(Path(folder), given.arrays)
        for _ in range(given.rounds):
            for name, parse in sides.items():
                found[name].append(microseconds(parse, made))
            for which, values in starts.items():
                values.append(start_s(Path(folder), which))
    for name, values in found.items():
        print(line(name, values, "us"))
    print(line("a process that reads one array's metadata", starts["nothing"], "s"))
    print(line("the same, with zarr imported", starts["zarr"], "s"))
    ours, theirs = found.values()
    print(f"ratio of the parsers: {statistics.median(np.array(theirs) / ours):.3g}")
    print(f"import of zarr: {statistics.median(np.subtract(starts['zarr'], starts['nothing'])):.3g} s of CPU")


if __name__ == "__main__":
    main()
