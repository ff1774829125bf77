"""Options of `rankwise run` for Slurm."""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = ["SlurmWords"]

_PANEL = "Slurm"


def _option(*names: str, metavar: str | None = None, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=_PANEL)


class SlurmWords:
    """The types of the options, for typer."""

    slurm = Annotated[bool, _option("--slurm", text="Submit to Slurm (through submitit), and follow the output.")]
    partition = Annotated[str | None, _option("--partition", metavar="P", text="Default: Slurm's own.")]
    nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Nodes.", rich_help_panel=_PANEL)]
    gpus_per_node = Annotated[
        int | None,
        _option("--gpus-per-node", metavar="G", text="GPUs of a node, and ranks. Without it: CPU, --nproc ranks."),
    ]
    time = Annotated[str, _option("--time", metavar="2h", text="Limit: 2h, 90m, 1d12h, or as Slurm writes it.")]
    account = Annotated[str | None, _option("--account", metavar="A", text="Who pays.")]
    qos = Annotated[str | None, _option("--qos", metavar="Q", text="Quality of service.")]
    constraint = Annotated[str | None, _option("--constraint", metavar="C", text="Features of the nodes.")]
    mem = Annotated[str | None, _option("--mem", metavar="32G", text="Memory of a node.")]
    cpus_per_task = Annotated[int | None, _option("--cpus-per-task", metavar="C", text="Cores of a rank.")]
    job_name = Annotated[str | None, _option("--job-name", metavar="NAME", text="Default: the target's name.")]
    slurm_arg = Annotated[
        list[str] | None,
        _option("--slurm-arg", metavar="K=V", text="Any option of sbatch, without its dashes; may be repeated."),
    ]
    container = Annotated[
        str | None, _option("--container", metavar="IMAGE", text="Image for the ranks (srun --container-image, Pyxis).")
    ]
    detach = Annotated[bool, _option("--detach", text="Submit, print the job's number, and leave.")]
    requeue = Annotated[
        bool | None,
        _option(
            "--requeue/--no-requeue",
            text="Put the Slurm job back into the queue when its ranks have saved because of a signal or their time "
            "limit (exit code 75), or a node is lost. Default: with --slurm yes, inside a batch script no.",
        ),
    ]
    max_requeues = Annotated[
        int | None,
        typer.Option(
            "--max-requeues",
            metavar="N",
            min=0,
            help="How often at most. Default: 100; two in a row without progress end it in any case.",
            rich_help_panel=_PANEL,
        ),
    ]
