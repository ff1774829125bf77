"""The options of `rankwise run` for typer: help, checks, and all options that `options` does not parse by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rankwise.cli.options import RunOptions
from rankwise.cli.slurm import SlurmOptions
from rankwise.cli.start import start_ranks

__all__ = ["as_folder", "run_command"]

_TORCHRUN = "torchrun's options"
_NODES = "Several nodes"
_OUTPUT = "Output"
_FAILURE = "Failures and time limits"


def as_folder(text: str) -> Path:
    """Return the folder that an option names: an empty text, as of a variable that is not set, would be this folder."""
    if not text:
        raise typer.BadParameter('it names a folder, got "": leave the option out, or give "." for the current folder')
    return Path(text)


def run_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(metavar="TARGET", help="Script, module (-m) or module:function, followed by its arguments."),
    ],
    nproc: Annotated[
        str,
        typer.Option(
            "--nproc",
            "--nproc-per-node",
            metavar="N|auto|gpu|cpu",
            help="Number of ranks. auto: one per visible GPU, or 1 without GPUs; gpu: one per GPU; "
            "cpu: one per usable core.",
        ),
    ] = "auto",
    ranks_per_gpu: Annotated[
        int | None,
        typer.Option(
            "--ranks-per-gpu", metavar="K", min=1, help="Let K ranks share each GPU; they communicate with gloo."
        ),
    ] = None,
    binding: Annotated[
        Literal["auto", "numa", "core", "none"],
        typer.Option(
            help="Bind each rank to cores. numa: the NUMA node of its GPU; core: its own cores; none: all cores; "
            "auto: numa if there are several nodes and the node of each GPU is known, else none."
        ),
    ] = "auto",
    module: Annotated[bool, typer.Option("-m", "--module", help="TARGET is a module name, as in python -m.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            parser=as_folder, metavar="DIR", help="Run directory: checkpoints, metrics and logs are stored there."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run even if the run directory contains one.")
    ] = False,
    resume: Annotated[
        Literal["auto", "must", "never"] | None,
        typer.Option(
            help="Resume the run in the run directory. auto: if there is one; must: fail if there is none; never: fail "
            "if there is one. Default: set by the script."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set an environment variable for the ranks; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started, without starting it.")
    ] = False,
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            metavar="K",
            min=0,
            help="Restart all ranks after one has failed, up to K times.",
            rich_help_panel=_FAILURE,
        ),
    ] = 0,
    min_ranks: Annotated[
        int | None,
        typer.Option(
            "--min-ranks",
            metavar="M",
            min=1,
            help="When no restart is left, continue with one rank fewer and K restarts again, down to M ranks.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Time for ranks to save and exit after Ctrl-C or SIGTERM, before they are killed. Default: 30 s.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    hang_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Stop the run, and name the rank that blocks the others, when no rank makes progress for this long; "
            "0: never. Default: 1800 s once a rank has called rankwise.vitals.beat (the Trainer does), else never.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    stall: Annotated[
        float | None,
        typer.Option(
            "--stall",
            metavar="SECONDS",
            min=0,
            help="Print where each rank is, and which rank blocks the others, when no rank makes progress for this "
            "long; the run continues. 0: never. Default: 180 s once a rank has started a collective or called "
            "rankwise.vitals.beat.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    shutdown_timeout: Annotated[
        float | None,
        typer.Option(
            "--shutdown-timeout",
            metavar="SECONDS",
            min=0,
            help="Time for ranks to exit after SIGTERM, before they are killed. Default: 5 s after a failure, "
            "30 s after Ctrl-C or SIGTERM.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    tee: Annotated[
        str,
        typer.Option(
            "-t",
            "--tee",
            metavar="WHAT",
            help="Output shown on the console. auto: stdout of rank 0, stderr of all ranks; all; main: rank 0 only; "
            "none; or torchrun's numbers (3, or 0:3,1:2).",
            rich_help_panel=_OUTPUT,
        ),
    ] = "auto",
    redirects: Annotated[
        str,
        typer.Option(
            "-r",
            "--redirects",
            metavar="NUMBERS",
            help="Streams written only to the log files, as torchrun's numbers (3, or 0:3,1:2).",
            rich_help_panel=_OUTPUT,
        ),
    ] = "0",
    merge: Annotated[
        bool,
        typer.Option(
            "--merge/--no-merge",
            help="Show a line that several ranks write at about the same time only once, as [0-3] line.",
            rich_help_panel=_OUTPUT,
        ),
    ] = True,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            "--log-dir",
            parser=as_folder,
            metavar="DIR",
            help="Folder for attempt-N/rank-R.out and .err. Default: logs/ in the run directory, if one is given.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    nnodes: Annotated[
        str,
        typer.Option(
            metavar="N|MIN:MAX", help="Number of nodes; each of them runs this command.", rich_help_panel=_NODES
        ),
    ] = "1",
    rdzv: Annotated[
        str | None,
        typer.Option(
            "--rdzv",
            metavar="HOST[,HOST][:PORT]",
            help="Rendezvous of the nodes, the same on all of them: the first host holds it; if that host is lost, the "
            "next one does. Default port: 29400.",
            rich_help_panel=_NODES,
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            "--node-rank", metavar="K", help="Rank of this node. Default: by order of arrival.", rich_help_panel=_NODES
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token of the nodes. Default: RANKWISE_TOKEN, else ~/.config/rankwise/token.",
            rich_help_panel=_NODES,
        ),
    ] = None,
    join_timeout: Annotated[
        float,
        typer.Option(
            "--join-timeout",
            metavar="SECONDS",
            help="Time for which nodes wait for each other, and for the replacement of a lost node.",
            rich_help_panel=_NODES,
        ),
    ] = 300.0,
    master_addr: Annotated[
        str | None,
        typer.Option(
            "--master-addr",
            metavar="ADDRESS",
            help="Address of rank 0; with --nnodes and without --rdzv the host of the rendezvous. Default: 127.0.0.1.",
            rich_help_panel=_TORCHRUN,
        ),
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(
            "--master-port",
            metavar="PORT",
            help="Port of rank 0; with --nnodes and without --rdzv the port of the rendezvous (default 29500). "
            "Default: a free port, held until the run ends.",
            rich_help_panel=_TORCHRUN,
        ),
    ] = None,
    slurm: SlurmOptions.slurm = False,
    partition: SlurmOptions.partition = None,
    slurm_nodes: SlurmOptions.nodes = 1,
    gpus_per_node: SlurmOptions.gpus_per_node = None,
    time: SlurmOptions.time = "1h",
    account: SlurmOptions.account = None,
    qos: SlurmOptions.qos = None,
    constraint: SlurmOptions.constraint = None,
    mem: SlurmOptions.mem = None,
    cpus_per_task: SlurmOptions.cpus_per_task = None,
    job_name: SlurmOptions.job_name = None,
    slurm_arg: SlurmOptions.slurm_arg = None,
    container: SlurmOptions.container = None,
    detach: SlurmOptions.detach = False,
    requeue: SlurmOptions.requeue = None,
    max_requeues: SlurmOptions.max_requeues = None,
    standalone: Annotated[bool, typer.Option("--standalone", hidden=True)] = False,
    rdzv_backend: Annotated[str | None, typer.Option("--rdzv-backend", hidden=True)] = None,
    rdzv_endpoint: Annotated[str | None, typer.Option("--rdzv-endpoint", hidden=True)] = None,
    rdzv_id: Annotated[str | None, typer.Option("--rdzv-id", hidden=True)] = None,
    rdzv_conf: Annotated[str | None, typer.Option("--rdzv-conf", hidden=True)] = None,
    monitor_interval: Annotated[float | None, typer.Option("--monitor-interval", hidden=True)] = None,
    start_method: Annotated[str | None, typer.Option("--start-method", hidden=True)] = None,
    role: Annotated[str | None, typer.Option(hidden=True)] = None,
    local_addr: Annotated[str | None, typer.Option("--local-addr", hidden=True)] = None,
    signals_to_handle: Annotated[str | None, typer.Option("--signals-to-handle", hidden=True)] = None,
) -> None:
    """Run a script, module or function on N ranks of this machine, or on N ranks of each of several nodes."""
    said = dict(locals())
    sys.exit(start_ranks(RunOptions(**said)))
