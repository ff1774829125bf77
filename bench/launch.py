"""From command start to the first collective: `rankwise run` against `torchrun --standalone`, interleaved.

    python bench/launch.py --rounds 8 --ranks 2

Each round starts both (in changing order) on the same script: import torch, join a gloo group, one all_reduce. Printed
are the median and the spread of the seconds from command start until the last rank has its result, and of the CPU
seconds that the command and everything below it used. Under load compare medians of one run only.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import os, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
with open("done-" + os.environ["RANK"], "w") as file:
    file.write(repr(time.time()))
dist.destroy_process_group()
"""
ALONE = "os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='0')"
BARE = SCRIPT.replace("dist.init", f"{ALONE}\ndist.init")


def commands(num_ranks: int) -> dict[str, list[str]]:
    run = [sys.executable, "-m", "rankwise", "run", "--nproc", str(num_ranks), "script.py"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    torchrun.append("script.py")
    return {"rankwise run": run, "torchrun --standalone": torchrun, "one bare process": [sys.executable, "bare.py"]}


def measure(command: list[str], folder: Path) -> tuple[float, float]:
    """Return (seconds to the first collective of the last rank, CPU seconds of the command and its children)."""
    for old in folder.glob("done-*"):
        old.unlink()
    before = cpu_seconds()
    start = time.time()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    last = max(float(path.read_text()) for path in folder.glob("done-*"))
    return last - start, cpu_seconds() - before


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    ways = commands(options.ranks)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "bare.py").write_text(BARE)
        for number in range(options.rounds + 1):
            order = list(ways) if number % 2 else list(reversed(ways))
            for way in order:
                result = measure(ways[way], folder)
                if number:  # the first round warms the file cache
                    results[way].append(result)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{options.ranks} gloo ranks, {options.rounds} rounds, {machine}")
    print(f"{'':24}{'s to first collective':>30}{'CPU s':>24}")
    for way, pairs in results.items():
        wall, cpu = zip(*pairs, strict=True)
        print(f"{way:24}{describe(wall):>30}{describe(cpu):>24}")


def describe(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
