"""The options of `rankwise run` for typer: help, checks, and all options that `options` does not parse by itself."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rankwise.cli.options import RunOptions
from rankwise.cli.start import start_ranks
from rankwise.errors import ConfigError


def as_place(text: str) -> str:
    """Return a path or URL that is not empty: "", as of a variable that is not set, would be this folder."""
    if not text:
        raise typer.BadParameter('it names a folder or file, got "": leave it out, or give "." for the current folder')
    return text


def as_path(text: str) -> Path:
    """Return the path that words name, which are not empty."""
    return Path(as_place(text))


def split_names(words: list[str] | None, option: str, kind: str) -> tuple[str, ...] | None:
    """Return the names in the words of an option, which commas may separate too; None if it was not given.

    `kind` is what it names, for the error: "a rule".

    Raises:
        ConfigError: it was given without a name, as by a variable that is not set: that is neither all nor nothing.
    """
    if words is None:
        return None
    found = tuple(name.strip() for word in words for name in word.split(",") if name.strip())
    if not found:
        raise ConfigError(f"{option} must name {kind}, got {', '.join(map(repr, words))}: leave it out for the default")
    return found


# a path, and a path or URL, as options and arguments
path_option = partial(typer.Option, parser=as_path)
path_argument = partial(typer.Argument, parser=as_path)
place_argument = partial(typer.Argument, parser=as_place)
_in_failures = partial(typer.Option, rich_help_panel="Failures and time limits")
_in_output = partial(typer.Option, rich_help_panel="Output")
_in_nodes = partial(typer.Option, rich_help_panel="Several nodes")
_in_torchrun = partial(typer.Option, rich_help_panel="torchrun's options")
_in_slurm = partial(typer.Option, rich_help_panel="Slurm")
_HIDDEN = (
    *("standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method"),
    *("role", "local_addr", "signals_to_handle"),
)

# by the name in `RunOptions`, which has types and defaults; in the order of the help
_OPTIONS: dict[str, Any] = {
    "words": typer.Argument(
        metavar="TARGET", help="Script, module (-m) or module:function, followed by its arguments."
    ),
    "nproc": typer.Option(
        "--nproc",
        "--nproc-per-node",
        metavar="N|auto|gpu|cpu",
        help="Number of ranks. auto: one per visible GPU, or 1 without GPUs; gpu: one per GPU; "
        "cpu: one per usable core.",
    ),
    "ranks_per_gpu": typer.Option(metavar="K", min=1, help="Let K ranks share each GPU; they communicate with gloo."),
    "binding": typer.Option(
        help="Bind each rank to cores. numa: the NUMA node of its GPU; core: its own cores; none: all cores; "
        "auto: numa if there are several nodes and the node of each GPU is known, else none."
    ),
    "module": typer.Option("-m", "--module", help="TARGET is a module name, as in python -m."),
    "run_dir": typer.Option(
        parser=as_path, metavar="DIR", help="Run directory: checkpoints, metrics and logs are stored there."
    ),
    "fresh": typer.Option("--fresh", help="Start a new run even if the run directory contains one."),
    "resume": typer.Option(
        help="Resume the run in the run directory. auto: if there is one; must: fail if there is none; never: fail "
        "if there is one. Default: set by the script."
    ),
    "env": typer.Option(metavar="NAME=VALUE", help="Set an environment variable for the ranks; may be repeated."),
    "dry_run": typer.Option("--dry-run", help="Print what would be started, without starting it."),
    "max_restarts": _in_failures(metavar="K", min=0, help="Restart all ranks after one has failed, up to K times."),
    "min_ranks": _in_failures(
        metavar="M",
        min=1,
        help="When no restart is left, continue with one rank fewer and K restarts again, down to M ranks.",
    ),
    "grace": _in_failures(
        metavar="SECONDS",
        min=0,
        help="Time for ranks to save and exit after Ctrl-C or SIGTERM, before they are killed. Default: 30 s.",
    ),
    "hang_timeout": _in_failures(
        metavar="SECONDS",
        min=0,
        help="Stop the run, and name the rank that blocks the others, when no rank makes progress for this long; "
        "0: never. Default: 1800 s once a rank has called rankwise.vitals.beat (the Trainer does), else never.",
    ),
    "stall": _in_failures(
        metavar="SECONDS",
        min=0,
        help="Print where each rank is, and which rank blocks the others, when no rank makes progress for this "
        "long; the run continues. 0: never. Default: 180 s once a rank has started a collective or called "
        "rankwise.vitals.beat.",
    ),
    "shutdown_timeout": _in_failures(
        metavar="SECONDS",
        min=0,
        help="Time for ranks to exit after SIGTERM, before they are killed. Default: 5 s after a failure, "
        "30 s after Ctrl-C or SIGTERM.",
    ),
    "tee": _in_output(
        "-t",
        "--tee",
        metavar="WHAT",
        help="Output shown on the console. auto: stdout of rank 0, stderr of all ranks; all; main: rank 0 only; "
        "none; or torchrun's numbers (3, or 0:3,1:2).",
    ),
    "redirects": _in_output(
        "-r",
        "--redirects",
        metavar="NUMBERS",
        help="Streams written only to the log files, as torchrun's numbers (3, or 0:3,1:2).",
    ),
    "merge": _in_output(
        "--merge/--no-merge",
        help="Show a line that several ranks write at about the same time only once, as [0-3] line.",
    ),
    "log_dir": _in_output(
        parser=as_path,
        metavar="DIR",
        help="Folder for attempt-N/rank-R.out and .err. Default: logs/ in the run directory, if one is given.",
    ),
    "nnodes": _in_nodes(metavar="N|MIN:MAX", help="Number of nodes; each of them runs this command."),
    "rdzv": _in_nodes(
        metavar="HOST[,HOST][:PORT]",
        help="Rendezvous of the nodes, the same on all of them: the first host holds it; if that host is lost, the "
        "next one does. Default port: 29400.",
    ),
    "node_rank": _in_nodes(metavar="K", help="Rank of this node. Default: by order of arrival."),
    "token_file": _in_nodes(
        parser=as_path,
        metavar="FILE",
        help="File with the token of the nodes. Default: RANKWISE_TOKEN, else ~/.config/rankwise/token.",
    ),
    "join_timeout": _in_nodes(
        metavar="SECONDS", help="Time for which nodes wait for each other, and for the replacement of a lost node."
    ),
    "master_addr": _in_torchrun(
        metavar="ADDRESS",
        help="Address of rank 0; with --nnodes and without --rdzv the host of the rendezvous. Default: 127.0.0.1.",
    ),
    "master_port": _in_torchrun(
        metavar="PORT",
        help="Port of rank 0; with --nnodes and without --rdzv the port of the rendezvous (default 29500). "
        "Default: a free port, held until the run ends.",
    ),
    "slurm": _in_slurm("--slurm", help="Submit a job to Slurm with submitit, and follow its output."),
    "partition": _in_slurm(metavar="P", help="Partition. Default: Slurm's own."),
    "slurm_nodes": _in_slurm("--nodes", metavar="N", min=1, help="Number of nodes."),
    "gpus_per_node": _in_slurm(
        metavar="G", help="Number of GPUs, and of ranks, per node. Default: no GPUs and --nproc ranks."
    ),
    "time": _in_slurm(metavar="2h", help="Time limit: 2h, 90m, 1d12h, or in Slurm's format."),
    "account": _in_slurm(metavar="A", help="Account to charge."),
    "qos": _in_slurm(metavar="Q", help="Quality of service."),
    "constraint": _in_slurm(metavar="C", help="Required features of the nodes."),
    "mem": _in_slurm(metavar="32G", help="Memory per node."),
    "cpus_per_task": _in_slurm(metavar="C", help="Number of cores per rank."),
    "job_name": _in_slurm(metavar="NAME", help="Job name. Default: the target's name."),
    "slurm_arg": _in_slurm(metavar="K=V", help="Any other option of sbatch, without the dashes; may be repeated."),
    "container": _in_slurm(metavar="IMAGE", help="Container image for the ranks (srun --container-image, Pyxis)."),
    "detach": _in_slurm("--detach", help="Submit the job, print its id, and exit."),
    "requeue": _in_slurm(
        "--requeue/--no-requeue",
        help="Requeue the Slurm job when its ranks have saved because of a signal or their time limit (exit code "
        "75), or a node is lost. Default: yes with --slurm, no inside a batch script.",
    ),
    "max_requeues": _in_slurm(
        metavar="N",
        min=0,
        help="Maximum number of requeues. Default: 100. The job also ends after two requeues in a row without "
        "progress.",
    ),
    **{name: typer.Option(f"--{name.replace('_', '-')}", hidden=True) for name in _HIDDEN},
}


def run_command(**said: Any) -> None:
    """Run a script, module or function on N ranks of this machine, or on N ranks of each of several nodes."""
    sys.exit(start_ranks(RunOptions(**said)))


def _signature() -> inspect.Signature:
    """Return the parameters by which typer knows the options."""
    types, kind = {**get_type_hints(RunOptions), "words": list[str]}, inspect.Parameter.KEYWORD_ONLY
    defaults = {name: getattr(RunOptions, name) for name in types} | {"words": inspect.Parameter.empty}
    return inspect.Signature(
        [
            inspect.Parameter(name, kind, default=defaults[name], annotation=Annotated[types[name], option])
            for name, option in _OPTIONS.items()
        ]
    )


run_command.__signature__ = _signature()  # type: ignore[attr-defined]
