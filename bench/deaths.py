"""Seconds from a rank's death, or from Ctrl-C, to the traceback on the console and to the end of all processes.

    python bench/deaths.py --rounds 5 --ranks 4

The ranks have loaded torch and wait in a gloo collective for rank 1, which dies in several ways; for Ctrl-C all of them
wait. A rank writes the time just before it dies. Printed are median and maximum of the seconds until the console
names the rank and until no process of the launch is left, with the allowed times.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SCRIPT = """
import os, sys, time
import torch
import rankwise
with rankwise.bind(device="cpu", timeout=1000) as world:
    world.all_reduce(1.0)
    open("ready-" + os.environ["RANK"], "w").close()
    while world.rank == 1 and len([n for n in os.listdir(".") if n.startswith("ready-")]) < world.world_size:
        time.sleep(0.01)
    if world.rank == 1 and sys.argv[1] != "wait":
        time.sleep(0.5)  # the others are in their collective
        open("died.tmp", "w").write(repr(time.time()))
        os.rename("died.tmp", "died")
        exec(sys.argv[1])
    elif world.rank == 1:
        time.sleep(1000)
    world.all_reduce(1.0)
"""
DEEDS = {
    "exception": "raise ValueError('the deed')",
    "exit 3": "sys.exit(3)",
    "os._exit": "os._exit(4)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
}
ALLOWED_S = {"death": 5.0, "Ctrl-C": 3.0}


def measure(deed: str, num_ranks: int) -> tuple[float, float]:
    """Return (seconds until the console names the rank, or says that the signal came; seconds until all are gone)."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "script.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "rankwise", "run", "--nproc", str(num_ranks), "script.py", deed]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DEATHS_MARK": mark},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        said: list[float] = []
        listener = threading.Thread(target=listen, args=(process, said))
        listener.start()
        if deed == "wait":
            while len(list(folder.glob("ready-*"))) < num_ranks:
                time.sleep(0.01)
            time.sleep(0.5)  # they are in their collective
            begun = time.time()
            process.send_signal(signal.SIGINT)
        process.wait()
        while is_left(mark):
            time.sleep(0.005)
        gone = time.time()
        listener.join()
        if deed != "wait":
            begun = float((folder / "died").read_text())
    return said[0] - begun, gone - begun


def listen(process: subprocess.Popen[str], said: list[float]) -> None:
    assert process.stderr is not None
    words = ("rankwise: rank 1 of", "rankwise: SIGINT")
    said.extend(time.time() for line in process.stderr if line.startswith(words))


def is_left(mark: str) -> bool:
    """Whether a process of the launch, marked by its environment, is left; one that may not be read is another's."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                return True
        except OSError:
            continue
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    cases = {**DEEDS, "Ctrl-C": "wait"}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, deed in cases.items():
            times[name].append(measure(deed, options.ranks))
    print(f"{options.ranks} ranks, {options.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| | s until it is said: median (worst) | s until all are gone: median (worst) | allowed |")
    print("|---|---|---|---|")
    for name, found in times.items():
        told, gone = zip(*found, strict=True)
        allowed = ALLOWED_S.get(name, ALLOWED_S["death"])
        print(f"| {name} | {spread(told)} | {spread(gone)} | {allowed:g} |")


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f} ({max(values):.2f})"


if __name__ == "__main__":
    main()
