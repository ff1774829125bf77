"""`rankwise jobs`, `rankwise logs` and `rankwise cancel`, and the options of `rankwise run` for Slurm."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from rankwise.errors import ConfigError

__all__ = ["SlurmOptions", "cancel_command", "jobs_command", "logs_command"]

_PANEL = "Slurm"
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
    from rankwise.launch.slurm.follower import follow_logs
    from rankwise.launch.slurm.handle import SlurmHandle

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


def _option(*names: str, metavar: str | None = None, text: str, least: int | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, min=least, help=text, rich_help_panel=_PANEL)


class SlurmOptions:
    """The types of the options of `rankwise run` for Slurm, for typer."""

    slurm = Annotated[bool, _option("--slurm", text="Submit a job to Slurm with submitit, and follow its output.")]
    partition = Annotated[str | None, _option("--partition", metavar="P", text="Partition. Default: Slurm's own.")]
    nodes = Annotated[int, _option("--nodes", metavar="N", least=1, text="Number of nodes.")]
    gpus_per_node = Annotated[
        int | None,
        _option(
            "--gpus-per-node",
            metavar="G",
            text="Number of GPUs, and of ranks, per node. Default: no GPUs and --nproc ranks.",
        ),
    ]
    time = Annotated[str, _option("--time", metavar="2h", text="Time limit: 2h, 90m, 1d12h, or in Slurm's format.")]
    account = Annotated[str | None, _option("--account", metavar="A", text="Account to charge.")]
    qos = Annotated[str | None, _option("--qos", metavar="Q", text="Quality of service.")]
    constraint = Annotated[str | None, _option("--constraint", metavar="C", text="Required features of the nodes.")]
    mem = Annotated[str | None, _option("--mem", metavar="32G", text="Memory per node.")]
    cpus_per_task = Annotated[int | None, _option("--cpus-per-task", metavar="C", text="Number of cores per rank.")]
    job_name = Annotated[
        str | None, _option("--job-name", metavar="NAME", text="Job name. Default: the target's name.")
    ]
    slurm_arg = Annotated[
        list[str] | None,
        _option("--slurm-arg", metavar="K=V", text="Any other option of sbatch, without the dashes; may be repeated."),
    ]
    container = Annotated[
        str | None,
        _option("--container", metavar="IMAGE", text="Container image for the ranks (srun --container-image, Pyxis)."),
    ]
    detach = Annotated[bool, _option("--detach", text="Submit the job, print its id, and exit.")]
    requeue = Annotated[
        bool | None,
        _option(
            "--requeue/--no-requeue",
            text="Requeue the Slurm job when its ranks have saved because of a signal or their time limit (exit code "
            "75), or a node is lost. Default: yes with --slurm, no inside a batch script.",
        ),
    ]
    max_requeues = Annotated[
        int | None,
        _option(
            "--max-requeues",
            metavar="N",
            least=0,
            text="Maximum number of requeues. Default: 100. The job also ends after two requeues in a row without "
            "progress.",
        ),
    ]
