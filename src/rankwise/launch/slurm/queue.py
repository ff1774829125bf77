"""Query job states with Slurm's commands, with or without accounting, and the limits of a partition.

Limits are checked before the submission, so that a job does not wait in the queue forever.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from rankwise.errors import ConfigError, LaunchError

_PATIENCE_S = 60.0
_UNDER_WAY = frozenset(
    {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING"}
    | {"SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "UNKNOWN"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """The state of a job in Slurm.

    Attributes:
        state: in Slurm's words; "UNKNOWN" if Slurm does not know the job any more (or not yet).
        reason: Slurm's reason for the state, "" without one.
        nodes: the nodes on which it runs, "" if it does not run.
    """

    state: str = "UNKNOWN"
    reason: str = ""
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again; a preempted or lost job that is requeued is pending instead."""
        return self.state not in _UNDER_WAY

    @property
    def has_left_queue(self) -> bool:
        """Whether it has ended, or Slurm does not know it."""
        return self.has_ended or self.state == "UNKNOWN"

    def __str__(self) -> str:
        return " ".join([self.state, *([f"({self.reason})"] if self.reason else []), self.nodes]).rstrip()


def slurm_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands; a non-zero exit status is no error here.

    Raises:
        LaunchError: the command is not installed, or does not answer.
    """
    if shutil.which(words[0]) is None:
        raise LaunchError(f"{words[0]} was not found: this needs a machine that can submit Slurm jobs")
    try:
        return subprocess.run(  # noqa: S603
            words,
            capture_output=True,
            text=True,
            errors="replace",  # names of jobs in any encoding
            timeout=_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{' '.join(words)} does not answer within {_PATIENCE_S:g} s") from error


def job_states(job_ids: Sequence[str]) -> dict[str, JobState]:
    """Return the states of jobs; for those that the controller has forgotten, from accounting if available.

    Raises:
        LaunchError: the controller does not answer.
    """
    found = {job_id: JobState() for job_id in job_ids}
    if not found:
        return found
    # by id, because a cluster may have a hundred thousand other jobs
    asked = "--jobs=" + ",".join(found)
    done = slurm_command("squeue", asked, "--noheader", "--states=all", "--format=%i|%T|%r|%N")
    if done.returncode and "Invalid job id" not in done.stderr:  # printed if all of them are forgotten
        raise LaunchError(f"Slurm does not answer: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        job_id, state, reason, nodes = line.split("|", 3)
        if job_id in found:
            found[job_id] = JobState(state=state, reason="" if reason == "None" else reason, nodes=nodes)
    forgotten = [job_id for job_id, state in found.items() if state.state == "UNKNOWN"]
    if forgotten and shutil.which("sacct"):
        done = slurm_command("sacct", "-X", "-n", "-P", "-o", "JobIDRaw,State,NodeList", "-j", ",".join(forgotten))
        for line in done.stdout.splitlines() if done.returncode == 0 else []:
            job_id, state, nodes = line.split("|", 2)
            if job_id in found:
                found[job_id] = JobState(state=state.split()[0], nodes=nodes)  # "CANCELLED by 1000"
    return found


def job_fields(job_id: str) -> dict[str, str] | None:
    """Return the controller's fields of a job of any user; None if it does not know the job.

    Raises:
        LaunchError: the controller does not answer.
    """
    done = slurm_command("scontrol", "--oneliner", "show", "job", job_id)
    if done.returncode and "Invalid job id" not in done.stderr:
        raise LaunchError(f"Slurm does not answer: {done.stderr.strip()}")
    if not done.stdout.startswith("JobId="):
        return None
    return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)


def end_time(job_id: str) -> float:
    """Return when a running job reaches its time limit, in seconds since the epoch; infinity without a limit."""
    try:
        return datetime.fromisoformat((job_fields(job_id) or {}).get("EndTime", "")).timestamp()
    except (ValueError, LaunchError):  # "Unknown", or no answer
        return math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A partition of Slurm; None and "" stand for no limit.

    Attributes:
        name: its name in Slurm.
        is_default: whether jobs without a partition go here.
        max_time_min: maximum time limit of a job.
        max_nodes: maximum number of nodes of a job.
        min_nodes: minimum number of nodes of a job.
        allowed_accounts: the only accounts that may use it.
        denied_accounts: accounts that may not use it.
        node_cpus: most cores of any of its nodes.
        node_gpus: most GPUs of any of its nodes; None: Slurm does not count them.
    """

    name: str
    is_default: bool = False
    max_time_min: int | None = None
    max_nodes: int | None = None
    min_nodes: int = 0
    allowed_accounts: tuple[str, ...] = ()
    denied_accounts: tuple[str, ...] = ()
    node_cpus: int | None = None
    node_gpus: int | None = None

    @classmethod
    def find(cls, names: str | None) -> list[Partition]:
        """Return the partitions of a list of names; for None the default partition, if there is one.

        Raises:
            ConfigError: a partition does not exist.
            LaunchError: Slurm is not installed or does not answer.
        """
        done = slurm_command("scontrol", "--oneliner", "show", "partition")
        if done.returncode:
            raise ConfigError(f"Slurm does not answer: {(done.stderr or done.stdout).strip()}")
        known = {one.name: one for line in done.stdout.splitlines() if (one := cls._read(line)).name}
        wanted = [name for name, one in known.items() if one.is_default] if names is None else names.split(",")
        found = []
        for name in wanted:
            if name not in known:
                raise ConfigError(f"no partition {name!r} here; there are {', '.join(sorted(known))}")
            done = slurm_command("sinfo", "--noheader", "--exact", f"--partition={name}", "--format=%c|%G")
            rows = [line.partition("|") for line in done.stdout.splitlines()]
            cpus = max((int(row[0].strip()) for row in rows if row[0].strip().isdecimal()), default=None)
            gpus = max((num_gpus(row[2]) for row in rows), default=None)
            found.append(replace(known[name], node_cpus=cpus, node_gpus=gpus))
        return found

    @classmethod
    def _read(cls, line: str) -> Self:
        max_time_min = None
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        limits = [int(text) for name in ("MaxNodes", "TotalNodes") if (text := fields.get(name, "")).isdecimal()]
        least = fields.get("MinNodes", "0")
        with contextlib.suppress(ConfigError):  # UNLIMITED
            max_time_min = parse_time(fields.get("MaxTime", ""))
        return cls(
            name=fields.get("PartitionName", ""),
            is_default=fields.get("Default") == "YES",
            max_time_min=max_time_min,
            max_nodes=min(limits, default=None),
            min_nodes=int(least) if least.isdecimal() else 0,
            allowed_accounts=_names(fields.get("AllowAccounts", "ALL")),
            denied_accounts=_names(fields.get("DenyAccounts", "")),
        )

    def refusal(
        self, *, nodes: int, time_min: int | None, account: str | None, cpus_per_node: int, gpus_per_node: int | None
    ) -> str:
        """Return why a job can never run in this partition, "" if it can."""
        where = f"partition {self.name!r}"
        gpus = gpus_per_node or 0
        reasons = {
            f"{where} allows at most {self.max_nodes} node(s) per job, --nodes is {nodes}": _exceeds(
                nodes, self.max_nodes
            ),
            f"{where} requires at least {self.min_nodes} nodes per job, --nodes is {nodes}": nodes < self.min_nodes,
            f"{where} has a time limit of {self.max_time_min} minutes, --time is {time_min}": _exceeds(
                time_min, self.max_time_min
            ),
            f"{where} is only for the account(s) {', '.join(self.allowed_accounts)}, not for --account {account}": bool(
                account and self.allowed_accounts and account not in self.allowed_accounts
            ),
            f"{where} is not for --account {account}": account in self.denied_accounts,
            f"a node of {where} has {self.node_gpus} GPU(s), --gpus-per-node is {gpus}": _exceeds(gpus, self.node_gpus),
            f"a node of {where} has {self.node_cpus} cores, ranks x --cpus-per-task need {cpus_per_node}": _exceeds(
                cpus_per_node, self.node_cpus
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")


def _exceeds(wanted: int | None, limit: int | None) -> bool:
    return wanted is not None and limit is not None and wanted > limit


def num_gpus(gres: str) -> int:
    """Count the GPUs in Slurm's notation: "gpu:2", "gpu:a100:4(S:0-1),gpu:v100:2", "(null)"."""
    return sum(int(found[1]) for found in re.finditer(r"(?:^|,)\s*gpu(?::[^:,()]+)??:(\d+)", gres))


def _names(text: str) -> tuple[str, ...]:
    return () if text in {"ALL", "", "(null)"} else tuple(text.split(","))


_DAYS = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_WORDS = re.compile(r"(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?")


def parse_time(text: str) -> int:
    """Return the minutes, rounded up, for "2h", "1d12h", "90m", or Slurm's "90", "2:00:00", "1-12", "1-12:30:00".

    Raises:
        ConfigError: the text has another format, or is zero.
    """
    words, days = _WORDS.fullmatch(text), _DAYS.fullmatch(text)
    if words:
        day, hour, minute = (int(number or 0) for number in words.groups())
        seconds = ((day * 24 + hour) * 60 + minute) * 60
    elif days:
        first, *rest = (int(number) for number in days.groups()[1:] if number is not None)
        by_length: tuple[tuple[int, ...], ...] = ((60,), (60, 1), (3600, 60, 1))  # M, M:S, H:M:S
        units = by_length[len(rest)] if days[1] is None else (3600, 60, 1)  # D-H, D-H:M, D-H:M:S
        seconds = int(days[1] or 0) * 86400 + sum(a * b for a, b in zip((first, *rest), units, strict=False))
    else:
        seconds = 0
    if seconds <= 0:
        raise ConfigError(f"--time must be 2h, 1d12h, 90m, or Slurm's minutes, H:MM:SS, D-HH:MM, got {text!r}")
    return -(-seconds // 60)
