"""Speed of `rankwise lint`, with ruff and TorchFix on the same files where they are installed.

python bench/lint.py [FOLDER] [--rounds N]

Each round runs each program once, in its own process, on the Python files of the folder (default: this project).
Reported are CPU seconds of the process and its children, with the start of the interpreter; ours also without it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rankwise.diagnose.lint import lint_paths

ROOT = Path(__file__).parents[1]


def cpu_s(command: list[str]) -> float:
    """Run a command; return the CPU seconds that it and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def programs(folder: str) -> dict[str, list[str] | None]:
    """The commands by name; None for what is not installed."""
    here = Path(sys.executable).parent
    ruff, torchfix = (shutil.which(name, path=f"{here}:{os.environ['PATH']}") for name in ("ruff", "torchfix"))
    return {
        "rankwise lint": [sys.executable, "-m", "rankwise", "lint", folder],
        "ruff check (defaults)": [ruff, "check", "--no-cache", "--isolated", folder] if ruff else None,
        "torchfix": [torchfix, "--select=ALL", folder] if torchfix else None,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=str(ROOT))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    within = []
    for _ in range(args.rounds):
        start = time.process_time()
        report = lint_paths([args.folder])
        within.append(time.process_time() - start)
    lines = report.num_lines
    load = os.getloadavg()[0]
    python = sys.version.split()[0]
    print(f"{report.num_files} files, {lines} lines; {os.cpu_count()} cores, load {load:.1f}, Python {python}")
    show("lint_paths, in a process", within, lines)
    for name, command in programs(args.folder).items():
        if command is None:
            print(f"{name:<26} not installed: skipped")
        else:
            show(name, [cpu_s(command) for _ in range(args.rounds)], lines)


def show(name: str, seconds: list[float], lines: int) -> None:
    """Print the median and the spread of one program."""
    middle = statistics.median(seconds)
    print(f"{name:<26} {middle:7.2f} CPU s ({min(seconds):.2f} to {max(seconds):.2f}), {lines / middle:10,.0f} lines/s")


if __name__ == "__main__":
    main()
