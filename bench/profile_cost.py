"""The cost of recording: steps of a plain DDP loop alone, with the recorder, and while torch.profiler records.

    python bench/profile_cost.py [--rounds 5] [--width 256]

Two gloo ranks of one thread each; the script writes its own step times. Each round runs it under `rankwise run` and
under `rankwise profile`, and reads the steps before and during the recording apart.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common.header import print_machine
from _common.spreads import ratios, spread

from rankwise.diagnose.profile import Script, profile_script, profile_traces

SKIP, STEPS = 40, 100
SCRIPT = """
import sys, time
import torch
import rankwise
width, path = int(sys.argv[1]), sys.argv[2]
with rankwise.bind(device="cpu", threads=1) as world:
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model = rankwise.prepare(torch.nn.Sequential(*layers), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(32, width)
    file = open(f"{path}.{world.rank}", "w", buffering=1)
    for _ in range(150):
        began = time.perf_counter()
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(time.perf_counter() - began, file=file)
"""


def times_ms(path: Path) -> list[float]:
    """Return what rank 0 has written down."""
    return [1e3 * float(line) for line in path.with_name(path.name + ".0").read_text().split()]


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    print_machine()
    found: dict[str, list[float]] = {"alone": [], "recorder": [], "recording": []}
    reading = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        for number in range(args.rounds):
            path = folder / f"alone-{number}"
            words = [sys.executable, "-m", "rankwise", "run", "--nproc", "2", str(script), str(args.width), str(path)]
            subprocess.run(words, check=True, cwd=folder)
            found["alone"].append(statistics.median(times_ms(path)[SKIP // 2 :]))
            path = folder / f"profile-{number}"
            run = Script(path=str(script), args=(str(args.width), str(path)), num_threads=1)
            profile_script(run, num_ranks=2, steps=STEPS, skip=SKIP, folder=folder / "run")
            steps = times_ms(path)
            # the first two that the profiler sees are its warm-up; the last one holds the writing of the trace
            found["recorder"].append(statistics.median(steps[SKIP // 2 : SKIP - 1]))
            found["recording"].append(statistics.median(steps[SKIP + 2 : SKIP + STEPS + 1]))
            began = time.perf_counter()
            profile_traces(folder / "run")
            reading.append(2 * STEPS / (time.perf_counter() - began))
    for name, values in found.items():
        print(f"{name:10} {spread(values)} ms a step; to alone {ratios(values, found['alone'])}")
    print(f"reading    {spread(reading)} steps a second")


if __name__ == "__main__":
    main()
