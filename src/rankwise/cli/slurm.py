"""`rankwise jobs`, `rankwise logs` and `rankwise cancel`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rankwise.errors import ConfigError

_JOB = typer.Argument(metavar="JOB", help="Slurm job id.")


def jobs_command(
    all_jobs: Annotated[bool, typer.Option("--all", help="Also list jobs that have ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """List the Slurm jobs submitted with rankwise: state, reason, nodes, run directory."""
    from rankwise.launch.slurm.handle import SlurmHandle
    from rankwise.launch.slurm.queue import job_states

    handles = SlurmHandle.find_all()
    states = job_states([handle.job_id for handle in handles])
    rows = []
    for handle in handles:
        found = states[handle.job_id]
        found = handle.ask() if found.state == "UNKNOWN" else found
        if all_jobs or not found.has_left_queue:
            where = str(handle.run_dir or handle.folder)
            rows.append(
                {"job": handle.job_id, "name": handle.name, "state": found.state, "reason": found.reason}
                | {"nodes": found.nodes, "ranks": str(handle.num_ranks), "folder": where}
            )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print("no jobs" if all_jobs else "no jobs in the queue (--all also lists jobs that have ended)")
        return
    widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
    for row in [{key: key for key in widths}, *rows]:
        print("  ".join(row[key].ljust(width) for key, width in widths.items()).rstrip())


def logs_command(
    job: Annotated[str, _JOB],
    rank: Annotated[
        int | None, typer.Option(metavar="R", help="Print all output of this rank in the newest attempt.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new output until the job has ended.")
    ] = False,
) -> None:
    """Print the output of a Slurm job: its console, or one rank."""
    from rankwise.launch.slurm.handle import SlurmHandle, follow_logs

    handle = SlurmHandle.find(job)
    path = handle.log_path(rank)
    if not follow and not path.exists():
        raise ConfigError(f"job {job} has not written any output to {path} yet: it is {handle.ask()}")
    try:
        follow_logs(handle, rank, until_end=follow)
    except KeyboardInterrupt:
        sys.exit(130)


def cancel_command(job: Annotated[str, _JOB]) -> None:
    """Cancel a Slurm job, pending or running."""
    from rankwise.launch.slurm.handle import SlurmHandle

    handle = SlurmHandle.find(job)
    handle.cancel()
    print(f"rankwise: job {job} ({handle.name}) is cancelled", file=sys.stderr)
