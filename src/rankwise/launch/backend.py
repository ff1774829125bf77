"""Start a job, or say what would be started: all ranks on this machine, or this machine's ranks of a job on several."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.launch.hardware import format_numbers

if TYPE_CHECKING:
    from rankwise.launch.failures.outcome import Outcome
    from rankwise.launch.job import Job


def supervise(job: Job) -> Outcome:
    """Start the ranks, watch them, and restart all of them after a failure, up to `max_restarts` times.

    Call it in the main thread of a process without other threads. When it returns, no rank is left. If this process
    is killed, its ranks are killed too.

    Raises:
        LaunchError: the ranks cannot be started, or other nodes cannot be found or joined.
        ConfigError: the job has several nodes, but no token with which they could authenticate.
    """
    if job.nodes is not None:
        from rankwise.launch.elastic.supervisor import supervise_node

        return supervise_node(job)
    from rankwise.launch.local.supervisor import supervise as supervise_local

    return supervise_local(job)


def describe_job(job: Job) -> str:
    """Describe in a few lines what `supervise(job)` would start: command, ranks, variables, logs, failure handling."""
    import shlex

    from rankwise.launch.local.environment import Part, rank_cores, rank_environment

    python = {"script": [], "module": ["-m"], "function": ["-c"], "call": []}[job.target.kind]
    name = job.target.name
    if job.target.kind == "function":
        module, _, function = name.partition(":")
        name = f"import {module}; {module}.{function}()"
    command = shlex.join([sys.executable, *python, name, *job.target.args])
    all_cores = rank_cores(job)
    bound = [
        f"rank {rank}: {format_numbers(cores.cpus)}" for rank, cores in enumerate(all_cores) if cores.cpus is not None
    ]
    lines = [
        f"command    {command}",
        f"ranks      {job.num_ranks} on this machine",
        *_describe_nodes(job),
        f"cores      {'; '.join(bound) or 'not bound'}",
        f"restarts   up to {job.max_restarts}",
        f"hang after {_patience(job.hang_timeout_s)}",
        f"logs       {job.logs / 'attempt-N' if job.logs is not None else 'none'}",
        "variables  of rank 0:",
    ]
    part = Part(world_size=job.num_ranks, master_addr=job.master_addr, master_port=job.master_port or 0)
    env = rank_environment(job, part, rank=0, cores=all_cores[0], attempt=0, run_id="ID", vitals=Path("FOLDER"))
    added = {name: value for name, value in env.items() if os.environ.get(name) != value}
    if job.master_port is None:
        added["MASTER_PORT"] = "a free port, held until the end"
    if job.nodes is not None:
        theirs = ("RANK", "ROLE_RANK", "GROUP_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR")
        added |= dict.fromkeys(theirs, "agreed by the nodes")
    added |= {name: "random" for name in added if name == "RANKWISE_SECRET"}
    return "\n".join([*lines, *(f"  {name}={value}" for name, value in sorted(added.items()))])


def _describe_nodes(job: Job) -> list[str]:
    nodes = job.nodes
    if nodes is None:
        return []
    number = f"{nodes.min_nodes} to {nodes.max_nodes}" if nodes.elastic else str(nodes.max_nodes)
    rank = "" if nodes.node_rank is None else f", this is node {nodes.node_rank}"
    return [f"nodes      {number}{rank}; rendezvous at port {nodes.port} of {', then '.join(nodes.rendezvous)}"]


def _patience(seconds: float | None) -> str:
    from rankwise.launch.local.failure_detector import DEFAULT_TIMEOUT_S

    if seconds is None:
        return f"{DEFAULT_TIMEOUT_S:g} s without progress, once a rank has called vitals.beat"
    return f"{seconds:g} s without progress" if seconds else "never"
