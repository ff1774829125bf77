"""Order generation: `rankwise.data.order` against ``torch.utils.data.DistributedSampler``, as one of 8 ranks.

    python bench/order.py [--sizes 1e6 1e8 1e9] [--repeats 3] [--emit 1e6] [--quick]

Every measurement runs in a new process, after the imports, and reports for one rank
- first: CPU time until the first index, creation of the sampler included,
- ns per index: total CPU time divided by the indices that this rank emitted,
- memory: peak growth of the process.
torch's sampler builds the list of its whole epoch before the first index. Ours stops after `--emit` indices: its cost
per index is constant. torch is left out above 1e8, and runs once at 1e8.

Then the cost of a step for a rank at `--ranks` ranks with 32 samples each: ``order.step`` and `shares`, without
reading, over 1e9 samples; each world size in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORLD, RANK, BATCH = 8, 3, 4096
SHARE, STEPS = 32, 2000
TOOLS = {"torch": "torch DistributedSampler", "rows": "rankwise, chunk 64, window 16", "flat": "rankwise, chunk 1"}


class Sized:
    """Stands in for a dataset: only its length is asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def torch_indices(size: int):
    from torch.utils.data import DistributedSampler

    return lambda: iter(DistributedSampler(Sized(size), num_replicas=WORLD, rank=RANK, shuffle=True))


def rankwise_indices(size: int, chunk: int):
    import rankwise.world.adopt  # noqa: F401  (an order asks whether this process is a rank)
    from rankwise.data.order import BatchSampler, Order

    def start():
        order = Order(size, batch_size=BATCH, chunk_samples=chunk, remainder="drop")
        sampler = BatchSampler(order, rank=RANK, world_size=WORLD)
        return (index for ids in sampler for index in ids)

    return start


def child(tool: str, size: int, emit: int) -> dict[str, float]:
    """Measure one sampler in this process."""
    make = torch_indices(size) if tool == "torch" else rankwise_indices(size, 64 if tool == "rows" else 1)
    before_kib = resident_kib()
    begun = time.process_time()
    indices = make()
    next(indices)
    first_s = time.process_time() - begun
    emitted = 1
    most = size if tool == "torch" else emit
    for _ in indices:
        emitted += 1
        if emitted >= most:
            break
    spent_s = time.process_time() - begun
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "first_ms": first_s * 1e3,
        "ns_per_index": spent_s / emitted * 1e9,
        "memory_mb": max(0, peak_kib - before_kib) / 1024,
        "emitted": emitted,
    }


def step_child(chunk: int, world: int) -> dict[str, float]:
    """Measure 2,000 steps of one rank, in CPU microseconds each; what is computed for the first ones is included."""
    from rankwise.data.contract import shares
    from rankwise.data.order import Order

    order = Order(10**9, batch_size=SHARE * world, chunk_samples=chunk)
    state, begun = order.start(), time.process_time()
    for _ in range(STEPS):
        step = order.step(state)
        shares(step, rank=world // 2, world_size=world, num_micro=1)
        state = step.resume
    return {"us_per_step": (time.process_time() - begun) / STEPS * 1e6}


def show_steps(worlds: list[int], repeats: int) -> None:
    """Print what a step costs a rank of small and large worlds, and how that grows."""
    columns = " | ".join(f"{world:,} ranks, CPU µs" for world in worlds)
    print(f"| ids of a step, {SHARE} samples a rank | {columns} | growth |")
    print("|---|" + "---|" * (len(worlds) + 1))
    for tool, chunk in (("rows", 64), ("flat", 1)):
        runs: dict[int, list[float]] = {world: [] for world in worlds}
        for _ in range(repeats):
            for world in worlds:
                runs[world].append(measure("step", chunk, world)["us_per_step"])
        medians = [statistics.median(runs[world]) for world in worlds]
        cells = [
            f"{mid:.1f} ({min(runs[world]):.1f} to {max(runs[world]):.1f})"
            for mid, world in zip(medians, worlds, strict=True)
        ]
        print(f"| {TOOLS[tool]} | {' | '.join(cells)} | {medians[-1] / medians[0]:.2f}x |", flush=True)


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def measure(tool: str, size: int, emit: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", tool, str(size), str(emit)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def show(tool: str, size: int, runs: list[dict[str, float]]) -> dict[str, float]:
    columns = {}
    for name in ("first_ms", "ns_per_index", "memory_mb"):
        values = [run[name] for run in runs]
        columns[name] = (statistics.median(values), min(values), max(values))
    cells = " | ".join(f"{mid:.3g} ({low:.3g} to {high:.3g})" for mid, low, high in columns.values())
    print(f"| {TOOLS[tool]} | {size:.0e} | {cells} | {runs[0]['emitted']:.3g} | {len(runs)} |", flush=True)
    return {name: values[0] for name, values in columns.items()}


def hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{model}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e6, 1e8, 1e9])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--emit", type=float, default=1e6)
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 1024, 16384], help="worlds whose steps are timed")
    parser.add_argument("--quick", action="store_true", help="1e5 and 1e6, two repeats")
    options = parser.parse_args()
    sizes = [1e5, 1e6] if options.quick else options.sizes
    repeats = 2 if options.quick else options.repeats
    print(f"{hardware()}; rank {RANK} of {WORLD}, global batch {BATCH}; medians (least to most)")
    print("| sampler | samples | first index, CPU ms | CPU ns per index | memory, MB | indices | runs |")
    print("|---|---|---|---|---|---|---|")
    for size in map(int, sizes):
        tools = [tool for tool in TOOLS if tool != "torch" or size <= 10**8]
        runs: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
        for repeat in range(repeats):
            for tool in tools:
                if tool != "torch" or size < 10**8 or repeat == 0:
                    runs[tool].append(measure(tool, size, int(options.emit)))
        medians = {tool: show(tool, size, runs[tool]) for tool in tools}
        if "torch" in medians:
            for tool in ("rows", "flat"):
                first, each = (medians["torch"][name] / medians[tool][name] for name in ("first_ms", "ns_per_index"))
                print(f"  torch / {TOOLS[tool]} at {size:.0e}: first index {first:.3g}x, CPU per index {each:.2f}x")
    show_steps(options.ranks, repeats)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        first, second = int(sys.argv[3]), int(sys.argv[4])
        print(json.dumps(step_child(first, second) if sys.argv[2] == "step" else child(sys.argv[2], first, second)))
    else:
        main()
