"""Seconds until a run over several hosts continues, or ends with its reason, after a rank, a node or a link has died.

    sudo python bench/node_deaths.py --rounds 3

Three hosts are network namespaces of this machine, so the ranks share its cores; needs root and iproute2. Each host has
one rank that has loaded torch and calls gloo's all_reduce without a pause. Measured are seconds from the fault until
the consoles report it, and until the next collective after it, with the start of new ranks (Python and torch).
Printed are median and maximum, and the allowed times on a machine that is not busy.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common.machine import describe

from rankwise.testing.hosts import HostLab

HOSTS = ("anna", "bert", "cleo")
SCRIPT = """
import os, socket, time
import rankwise
with rankwise.bind(device="cpu", timeout=600) as world:
    while True:
        world.all_reduce(1.0)
        if world.is_main:
            text = f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {world.world_size} {time.time()}"
            open("progress.part", "w").write(text)
            os.rename("progress.part", "progress")
        name = f"pid-{socket.gethostname()}"
        if not os.path.exists(name):
            open(name, "w").write(str(os.getpid()))
        time.sleep(0.01)
"""
FIXED = ("--nproc", "1", "--nnodes", "2", "--max-restarts", "1", "--rdzv", "anna")
ELASTIC = ("--nproc", "1", "--nnodes", "1:3", "--rdzv", "anna,bert,cleo")
LIMIT_S = 300.0


class Run:
    """One run on the hosts of a lab, in a folder."""

    def __init__(self, lab: HostLab, folder: Path, options: tuple[str, ...], hosts: tuple[str, ...]) -> None:
        self.lab, self.folder, self.options = lab, folder, options
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("RANKWISE_")}
        self.env |= {"RANKWISE_TOKEN": "a token of the benchmark", "OMP_NUM_THREADS": "1"}
        self.started: dict[str, subprocess.Popen[Any]] = {}
        (folder / "script.py").write_text(SCRIPT)
        for host in hosts:
            self.start(host)
        self.trains(len(hosts))

    def start(self, host: str) -> None:
        """Start the command on a host."""
        words = [sys.executable, "-P", "-m", "rankwise", "run", *self.options, "script.py"]
        with (self.folder / f"console-{host}").open("ab") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            self.started[host] = self.lab.start(host, *words, cwd=self.folder, env=self.env, **streams)

    def progress(self) -> tuple[int, int, float]:
        """Return attempt, number of ranks and time of the newest collective."""
        try:
            attempt, size, when = (self.folder / "progress").read_text().split()
        except FileNotFoundError:
            return -1, 0, 0.0
        return int(attempt), int(size), float(when)

    def trains(self, size: int, beyond: int = -1) -> float:
        """Wait until so many ranks exchange in an attempt after `beyond`; return when."""
        return wait(lambda: self.progress()[0] > beyond and self.progress()[1] == size and self.progress()[2])

    def says(self, host: str, text: str) -> float:
        """Wait until a console shows a text; return when."""
        wait(lambda: text in (self.folder / f"console-{host}").read_text())
        return time.time()

    def ends(self, host: str) -> float:
        """Wait for the end of a host's command; return when."""
        wait(lambda: self.started[host].poll() is not None)
        return time.time()

    def close(self) -> None:
        """End everything, and mend the links."""
        for host in HOSTS:
            self.lab.restore(host)
            self.lab.kill_all(host)


def wait(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to that")
        time.sleep(0.01)
    return value


def rank_killed(run: Run) -> dict[str, float]:
    attempt, begun = run.progress()[0], time.time()
    os.kill(int((run.folder / "pid-bert").read_text()), signal.SIGKILL)
    return {"said": run.says("anna", "was ended by SIGKILL") - begun, "trains": run.trains(2, attempt) - begun}


def node_killed(run: Run) -> dict[str, float]:
    attempt, begun = run.progress()[0], time.time()
    run.lab.kill_all("bert")
    return {"said": run.says("cleo", "node bert") - begun, "trains": run.trains(2, attempt) - begun}


def node_joins(run: Run) -> dict[str, float]:
    attempt, begun = run.progress()[0], time.time()
    run.start("cleo")
    return {"said": run.says("anna", "another node has joined") - begun, "trains": run.trains(3, attempt) - begun}


def link_cut(run: Run) -> dict[str, float]:
    attempt, begun = run.progress()[0], time.time()
    run.lab.cut("bert")
    said = max(run.says("cleo", "node bert"), run.says("bert", "is lost: nothing heard from it"))
    return {"said": said - begun, "trains": run.trains(2, attempt) - begun}


def rendezvous_killed(run: Run) -> dict[str, float]:
    attempt, begun = run.progress()[0], time.time()
    run.lab.kill_all("anna")
    return {"said": run.says("cleo", "rendezvous at anna is lost") - begun, "trains": run.trains(2, attempt) - begun}


def rendezvous_cut(run: Run) -> dict[str, float]:
    attempt, begun = run.progress()[0], time.time()
    run.lab.cut("anna")
    return {"said": run.says("cleo", "rendezvous at anna is lost") - begun, "trains": run.trains(2, attempt) - begun}


def only_rendezvous_killed(run: Run) -> dict[str, float]:
    begun = time.time()
    run.lab.kill_all("anna")
    said = run.says("bert", "the rendezvous at anna is lost")
    return {"said": said - begun, "ends": run.ends("bert") - begun}


def only_rendezvous_cut(run: Run) -> dict[str, float]:
    begun = time.time()
    run.lab.cut("anna")
    said = run.says("bert", "the rendezvous at anna is lost")
    return {"said": said - begun, "ends": run.ends("bert") - begun}


# name: what is done, options, hosts that begin, and the most seconds until it is said and until what comes after it
CASES = {
    "a rank is killed, two nodes": (rank_killed, FIXED, HOSTS[:2], ("", "15")),
    "a node is killed, two of three go on": (node_killed, ELASTIC, HOSTS, ("", "20")),
    "a third node comes": (node_joins, ELASTIC, HOSTS[:2], ("", "")),
    "a node's link is cut, two of three go on": (link_cut, ELASTIC, HOSTS, ("30", "")),
    "the rendezvous' node is killed, on at the next host": (rendezvous_killed, ELASTIC, HOSTS, ("", "60")),
    "the rendezvous' link is cut, on at the next host": (rendezvous_cut, ELASTIC, HOSTS, ("30", "60")),
    "the only rendezvous is killed, the run ends": (only_rendezvous_killed, FIXED, HOSTS[:2], ("", "60")),
    "the only rendezvous' link is cut, the run ends": (only_rendezvous_cut, FIXED, HOSTS[:2], ("30", "60")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="words of the cases' names")
    options = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if not options.only or any(w in name for w in options.only)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    print(describe())
    with HostLab(HOSTS) as lab:
        for _ in range(options.rounds):
            for name, (deed, words, hosts, _) in cases.items():
                with tempfile.TemporaryDirectory() as folder:
                    run = Run(lab, Path(folder), words, hosts)
                    try:
                        found[name].append(deed(run))
                    finally:
                        run.close()
    print(f"{options.rounds} rounds, {os.cpu_count()} cores, load at the end {os.getloadavg()[0]:.1f}")
    print("| | s until it is said: median (worst) | allowed | s until the next collective, or the end | allowed |")
    print("|---|---|---|---|---|")
    for name, times in found.items():
        said, after = ([*column] for column in zip(*(one.values() for one in times), strict=True))
        limits = cases[name][3]
        print(f"| {name} | {spread(said)} | {limits[0]} | {spread(after)} | {limits[1]} |")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({max(values):.1f})"


if __name__ == "__main__":
    main()
