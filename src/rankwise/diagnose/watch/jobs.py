"""Find this user's running jobs on this machine, and collect evidence about one of them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise import vitals
from rankwise.diagnose.watch.evidence import JOB, Entry, Evidence, collect, idle_s
from rankwise.errors import ConfigError
from rankwise.launch.local.sessions import parent_process, process_state
from rankwise.vitals import Vital


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """Ranks of this machine that belong together.

    Attributes:
        pid: process id to ask for it by: its launcher's, or its first rank's if the launcher has several jobs.
        launcher: process id of their parent.
        command: command line of the first rank.
        run_dir: run directory, "" if unknown.
        variables: environment of the first rank.
        ranks: their vitals, by rank.
    """

    pid: int
    launcher: int
    command: str
    run_dir: str
    variables: Mapping[str, str]
    ranks: Sequence[Vital]

    @property
    def idle_s(self) -> float:
        """Return the time since any of its ranks made progress."""
        return min(map(idle_s, self.ranks))


def running_jobs() -> list[RunningJob]:
    """Return the jobs with vitals on this machine: those of `rankwise run`, and watched ones."""
    groups: dict[str, list[Vital]] = {}
    for root in {Path("/dev/shm"), Path(tempfile.gettempdir())}:  # noqa: S108  (where vitals lie)
        for folder in sorted(root.glob("rankwise-*")):
            for vital in _own_vitals(folder):
                groups.setdefault(_name_of_job(vital), []).append(vital)
    jobs = sorted(map(_job, groups.values()), key=lambda job: (job.launcher, job.pid))
    launchers = Counter(job.launcher for job in jobs)
    return [job if launchers[job.launcher] > 1 else replace(job, pid=job.launcher) for job in jobs]


def _name_of_job(vital: Vital) -> str:
    """Return the name by which a watched rank is registered; under `rankwise run` the launcher has one job."""
    with contextlib.suppress(OSError):
        return (vital.folder / JOB).read_text()
    return str(parent_process(vital.pid))


def _own_vitals(folder: Path) -> list[Vital]:
    """Return the vitals of running processes in a folder; [] if the folder belongs to another user."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return []
        return [vital for vital in vitals.read(folder) if process_state(vital.pid) not in {"", "Z", "X"}]
    except OSError:  # it is being removed
        return []


def _announced_folder(pid: int, name: str) -> bytes:
    """Return a file of /proc for a process; b"" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _job(found: list[Vital]) -> RunningJob:
    found = sorted(found, key=lambda vital: vital.rank)
    first = next((vital.pid for vital in found if _announced_folder(vital.pid, "cmdline")), found[0].pid)
    command = _announced_folder(first, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    words = _announced_folder(first, "environ").decode(errors="surrogateescape").split("\0")
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    run_dir = variables.get("RANKWISE_RUN_DIR", "")
    launcher = parent_process(first)
    return RunningJob(pid=first, launcher=launcher, command=command, run_dir=run_dir, variables=variables, ranks=found)


def entries_of(job: RunningJob) -> list[Entry]:
    """Return the registry entries of a job's ranks, for `collect`."""
    return [
        Entry(rank=vital.rank, pid=vital.pid, host="", name=vital.host, folder=str(vital.folder)) for vital in job.ranks
    ]


def inspect_run(target: str) -> Evidence:
    """Ask every rank of a running job of this machine for its stacks and its last collectives.

    Args:
        target: process id of the launcher or of a rank, or the run directory; "" if only one job runs.

    Raises:
        ConfigError: there is no such job, or there are several.
    """
    jobs = running_jobs()
    found = [job for job in jobs if _is_meant(job, target)]
    if len(found) != 1:
        known = "; ".join(f"{job.pid} ({len(job.ranks)} ranks, {job.command[:60]})" for job in jobs) or "none"
        what = f"the job {target!r}" if target else "one running job"
        raise ConfigError(
            f"rankwise watch needs {what} on this machine, found {len(found)}; running here: {known}. Give the process "
            "id of the launcher or of a rank, or the run directory; jobs of other launchers are found if they call "
            "rankwise.watch() or run with RANKWISE_WATCH=180"
        )
    return collect(entries_of(found[0]))


def _is_meant(job: RunningJob, target: str) -> bool:
    if not target:
        return True
    if target.isdecimal():
        return int(target) in {job.launcher, *(vital.pid for vital in job.ranks)}
    return bool(job.run_dir) and Path(job.run_dir).resolve() == Path(target).resolve()
