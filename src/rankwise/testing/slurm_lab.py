"""A real Slurm on this machine: a controller, and nodes in network namespaces with addresses of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rankwise.testing.hosts import HostLab

_TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "setpriv")
_MUNGE_SOCKET = Path("/run/munge/munge.socket.2")
_PATIENCE_S = 60.0
_NODE_LOST_S = 20
_POLL_S = 0.2  # each time processes of Slurm start

_CONF = """
ClusterName={name}
SlurmctldHost={name}-ctl({net}.254)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
GresTypes=gpu
ReturnToService=2
KillWait=10
SlurmdTimeout={timeout}
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/log/ctld
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/log/slurmd-%n
{nodes}
PartitionName=general Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=node1 MaxTime=2 State=UP
PartitionName=closed Nodes=ALL AllowAccounts=physics State=UP
"""


def why_no_slurm() -> str:
    """Return why Slurm cannot be started here, "" if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"Slurm's lab needs {', '.join(missing)} (Debian: slurm-wlm munge iproute2)"
    return HostLab.obstacle()


class SlurmLab:
    """Slurm with nodes `node1`, `node2`, ... with two CPUs and two fake GPUs each; a context manager.

    Partition `general` is the default, `high` preempts its jobs with SIGTERM and 60 s of grace, `short` has the first
    node for two minutes, `closed` is for the account `physics`. A silent node is lost after 20 s. Names, addresses and
    ports are unique, so several labs can run at once; they share munged. A lab ends with this process.

    Args:
        folder: existing folder for configuration, state and logs.
        num_nodes: number of nodes.

    Attributes:
        env: environment for Slurm's commands.
    """

    def __init__(self, folder: Path, num_nodes: int = 2) -> None:
        self.folder = folder
        self.nodes = [f"node{number}" for number in range(1, num_nodes + 1)]
        self.name = f"rw{os.getpid() % 1_000_000}"
        self.net = _free_net()
        self._hosts = HostLab(self.nodes, network=self.net, here=f"{self.name}-ctl")
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._hosts.__enter__()
        try:
            self._write()
            _start_munge()
            control = 'hostname "$1"; shift; exec "$@"'
            self._start(["unshare", "-u", "sh", "-c", control, "sh", f"{self.name}-ctl", "slurmctld", "-D"])
            for node in self.nodes:
                self.revive(node)
            self.wait_idle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands and return its output."""
        return _run(list(words), env={**os.environ, **self.env}).stdout.strip()

    def state(self, job_id: str) -> dict[str, str]:
        """Return the controller's fields of a job."""
        words = self.command("scontrol", "-o", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job_id: str, *states: str, seconds: float = 180.0) -> dict[str, str]:
        """Wait until a job is in one of the states.

        Raises:
            TimeoutError: it did not reach any of them in time.
        """
        deadline = time.monotonic() + seconds
        while (found := self.state(job_id))["JobState"] not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} is {found['JobState']} ({found['Reason']}), waited for {states}")
            time.sleep(_POLL_S)
        return found

    def start_requeued(self, job_id: str) -> None:
        """Make a requeued job start soon; Slurm would delay it for two minutes.

        First wait until the nodes have ended its first run: within that second they refuse to start the same job.

        Raises:
            TimeoutError: its processes do not end.
        """
        self.wait(job_id, "PENDING")
        deadline = time.monotonic() + _PATIENCE_S
        while any(f"slurmstepd: [{job_id}." in command for command in self._commands()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"steps of the first run of job {job_id} stay on the nodes")
            time.sleep(0.05)
        self.command("scontrol", "update", f"JobId={job_id}", "StartTime=now+2")

    def _commands(self) -> list[str]:
        """Return the command lines of all processes on the nodes."""
        found = []
        for node in self.nodes:
            for pid in self._hosts.pids(node):
                with contextlib.suppress(OSError):
                    found.append(Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def wait_idle(self) -> None:
        """Wait until all nodes are up and without jobs.

        Raises:
            TimeoutError: they did not come up in time.
        """
        deadline = time.monotonic() + _PATIENCE_S
        wanted = str(len(self.nodes))
        while True:
            done = _run(
                ["sinfo", "-h", "-p", "general", "-t", "idle", "-o", "%D"], env={**os.environ, **self.env}, check=False
            )
            # nodes already count as idle while they end a job, and then slurmd stops slowly
            if done.stdout.strip() == wanted and not self.command("squeue", "--noheader"):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in (self.folder / "log").iterdir())
                raise TimeoutError(f"the nodes did not come up: {done.stdout} {done.stderr}\n{logs}")
            time.sleep(_POLL_S)

    def suspend(self, node: str, *, resume: bool = False) -> None:
        """Stop the slurmd of a node, so that it does not answer, or continue it; its jobs keep running."""
        for pid in self._hosts.pids(node):
            with contextlib.suppress(OSError):  # other processes may end meanwhile
                if Path("/proc", str(pid), "comm").read_text().strip() == "slurmd":
                    os.kill(pid, signal.SIGCONT if resume else signal.SIGSTOP)

    def kill(self, node: str) -> None:
        """Kill all processes of a node at once, slurmd and job steps, like a power loss.

        Raises:
            TimeoutError: a process does not end.
        """
        self._hosts.kill_all(node)
        if pids := self._hosts.pids(node):
            raise TimeoutError(f"processes {pids} stay on {node}")

    def revive(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._start(self._hosts.command(node, "slurmd", "-D", "-N", node))

    def close(self) -> None:
        """End all daemons and their processes, and remove the networks."""
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._hosts.__exit__(None, None, None)

    def _write(self) -> None:
        for name in ("state", "log", "dev", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        for number in range(2):
            os.mknod(self.folder / "dev" / f"gpu{number}", 0o20600, os.makedev(1, 3))
        nodes = [
            f"NodeName={node} NodeAddr={self._hosts.address(node)} CPUs=2 RealMemory=8000 Gres=gpu:2 State=UNKNOWN"
            for node in self.nodes
        ]
        text = _CONF.format(
            name=self.name,
            net=self.net,
            port=_free_port(),
            folder=self.folder,
            nodes="\n".join(nodes),
            timeout=_NODE_LOST_S,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(
            f"NodeName={','.join(self.nodes)} Name=gpu File={self.folder}/dev/gpu[0-1]\n"
        )

    def _start(self, command: Sequence[str]) -> None:
        with (self.folder / "log" / f"daemon-{len(self._daemons)}").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(  # noqa: S603
                    ["setpriv", "--pdeathsig", "KILL", *command],  # noqa: S607
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.env},
                )
            )


def _run(
    command: Sequence[str], *, env: dict[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(  # noqa: S603
        command, env=env, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _free_net() -> str:
    """Return the first three numbers of a network without an interface of this machine."""
    taken = _run(["ip", "-4", "-o", "addr"], check=False).stdout
    start = os.getpid()
    for number in range(start, start + 4096):
        net = f"10.{200 + number // 256 % 16}.{number % 256}"
        if f" {net}." not in taken:
            return net
    raise RuntimeError("no free network for Slurm's lab")


def _start_munge() -> None:
    """Start munged as its own user unless it runs; it keeps running, because other labs may use it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(_MUNGE_SOCKET))
        return
    shutil.chown(_ensure(_MUNGE_SOCKET.parent), "munge", "munge")
    _run(["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--force"])


def _ensure(folder: Path) -> Path:
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder
