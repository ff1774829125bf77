"""Start a group of gloo ranks on this machine, in subprocesses with a deadline; check its results and speed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, measured, not_run, passed
from rankwise.diagnose.doctor.collectives import compare_patterns

_STAGES = {  # what a rank reports, in order, and what it means not to get there
    "torch": "importing torch",
    "store": "opening the store on loopback",
    "group": "meeting the other ranks",
    "collectives": "the first collectives",
    "sweep": "measuring",
}
_JOIN_S = 5.0
_AFTER_S = 2.0  # after the first failure, wait for reports of others, which may have the cause
# launcher variables that would make a rank of the probe join the job
_NOT_HANDED_ON = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANKWISE_VITALS", "RANKWISE_WATCH")


class _Probe:
    """One rank's process and its reported stages."""

    def __init__(self, rank: int, ranks: int, port: int, deadline_s: float, environ: Mapping[str, str]) -> None:
        words = [str(rank), str(ranks), str(port), str(int(deadline_s))]
        env = {key: value for key, value in environ.items() if key not in _NOT_HANDED_ON}
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "rankwise.diagnose.doctor.probe", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        self.said: dict[str, dict[str, Any]] = {}
        self.complaint = ""
        self.ended_itself = False
        # Always one thread per pipe: a probe that fills an unread pipe would block forever and look stuck. Daemon
        # threads, because a pipe stays open as long as any process has it.
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read_output, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # other imported modules may print too
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)
                self.said[found["stage"]] = found

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.complaint = self.process.stderr.read()

    def wait_for(self, stage: str, deadline: float) -> bool:
        """Wait until the rank has reported the stage or ended, or the time is up."""
        # Polled without a lock: a reported stage stays, and the end of a process sends no notification.
        while stage not in self.said and time.monotonic() < deadline:
            if self.process.poll() is not None:
                self._threads[0].join(_JOIN_S)  # its last report may still be in the pipe
                break
            time.sleep(0.02)
        return stage in self.said

    def end(self) -> None:
        self.ended_itself = self.process.poll() is not None
        self.process.kill()
        self.process.wait()
        for thread, stream in zip(self._threads, (self.process.stdout, self.process.stderr), strict=True):
            thread.join(_JOIN_S)
            # A process left by the probe may keep the pipe open. Then closing the stream would wait forever for the
            # reader thread: leave both, as the thread is a daemon and ends with this process.
            if stream is not None and not thread.is_alive():
                stream.close()


def check_group(ranks: int = 2, deadline_s: float = 60.0, environ: Mapping[str, str] | None = None) -> list[Check]:
    """Start `ranks` gloo ranks that meet and reduce; report which rank is stuck where after the deadline."""
    name = f"group of {ranks} gloo ranks"
    variables = os.environ if environ is None else environ
    deadline = time.monotonic() + deadline_s
    probes = [_Probe(0, ranks, 0, deadline_s, variables)]
    try:
        if probes[0].wait_for("store", deadline):
            port = int(probes[0].said["store"]["port"])
            probes += [_Probe(rank, ranks, port, deadline_s, variables) for rank in range(1, ranks)]
            _wait_for_all(probes, deadline)
    finally:
        for probe in probes:
            probe.end()
    return _evaluate(name, probes, ranks)


def _wait_for_all(probes: Sequence[_Probe], deadline: float) -> None:
    """Wait until all ranks have measured; if one has ended earlier, wait only briefly for the others."""
    for probe in probes:
        while not probe.wait_for("sweep", min(deadline, time.monotonic() + 0.2)) and time.monotonic() < deadline:
            if any(other.process.poll() is not None and "sweep" not in other.said for other in probes):
                deadline = min(deadline, time.monotonic() + _AFTER_S)


def _evaluate(name: str, probes: Sequence[_Probe], ranks: int) -> list[Check]:
    stuck = {}
    for rank, probe in enumerate(probes):
        missing = next((stage for stage in _STAGES if stage not in probe.said), None)
        if missing is not None:
            stuck[rank] = missing
    if stuck:
        # a rank that ended by itself is the cause; the others may only have waited for it
        order = list(_STAGES)
        rank, stage = min(stuck.items(), key=lambda item: (not probes[item[0]].ended_itself, order.index(item[1])))
        said = probes[rank].complaint.strip().splitlines()
        evidence = (
            f"rank {rank} did not get past {_STAGES[stage]}{': ' + said[-1][:300] if said else ', and said nothing'}"
        )
        if stage == "torch" and any("No module named 'torch'" in line for line in said):
            return [not_run("group", name, "torch is not installed", "pip install 'rankwise[train]'")]
        return [failed("group", name, evidence, _advice(stage))]
    right = f"all_reduce, broadcast, all_gather and barrier correct on {ranks} ranks"
    wrong = [probe.said["collectives"]["wrong"] for probe in probes]
    collectives = compare_patterns(wrong, [socket.gethostname()] * ranks, right)
    if collectives.status == "fail":
        return [collectives]
    return [
        passed("group", name, f"met on loopback, torch {probes[0].said['torch']['version']}"),
        collectives,
        measured(probes[0].said["sweep"]["rows"]),
    ]


def _advice(stage: str) -> str:
    if stage == "torch":
        return "torch cannot be imported here: python -c 'import torch' shows the whole error"
    if stage in {"store", "group"}:
        return "check GLOO_SOCKET_IFNAME, the machine's own name (host section) and any firewall on loopback"
    return "check the machine's load and memory, and try again"
