"""`rankwise run` after parsing: build a job from the options, supervise it, and return the exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.cli.options import RunOptions
from rankwise.errors import ConfigError
from rankwise.launch.backend import describe_job, supervise
from rankwise.launch.hardware import count_ranks
from rankwise.launch.job import Job
from rankwise.launch.show import parse_show
from rankwise.launch.target import parse_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.launch.elastic.nodes import Nodes

__all__ = ["parse_env", "start_ranks"]

_UNNEEDED = (
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method"),
    *("role", "local_addr", "signals_to_handle"),
)
_SLURM = (
    *("slurm", "partition", "gpus_per_node", "time", "account", "qos", "constraint", "mem", "cpus_per_task"),
    *("job_name", "slurm_arg", "container", "detach", "requeue", "max_requeues"),
)
# options of sbatch that rankwise has itself, and those that ask for GPUs
_OUR_OPTIONS = frozenset(
    {"partition", "nodes", "gpus-per-node", "time", "account", "qos", "constraint", "mem", "cpus-per-task", "job-name"}
)
_GPU_OPTIONS = frozenset({"gres", "gpus", "gpus-per-task", "gpus-per-socket"})


def start_ranks(options: RunOptions) -> int:
    """Run the launch; return the exit code.

    Raises:
        RankwiseError: the launch is not possible.
    """
    _say_unneeded(options)
    job = _job(options)
    exitcode = _in_slurm(job, options)
    if exitcode is not None:
        return exitcode
    if options.dry_run:
        print(describe_job(job))
        return 0
    return supervise(job).exitcode


def _several(options: RunOptions) -> bool:
    return options.nnodes not in {"1", "1:1"}


def _say_unneeded(options: RunOptions) -> None:
    """Print which of the given options of torchrun have no effect here."""
    needed = {"rdzv_endpoint", "rdzv_id"} if _several(options) else set()
    names = [name for name in _UNNEEDED if name not in needed and getattr(options, name) is not None]
    if names:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        print(f"rankwise: not needed here, ignored: {given}", file=sys.stderr)


def _job(options: RunOptions) -> Job:
    nodes = _nodes(options)
    several = _several(options)
    return Job(
        target=parse_target(options.words, as_module=options.module),
        num_ranks=1 if options.slurm else count_ranks(options.nproc, "--nproc", ranks_per_gpu=options.ranks_per_gpu),
        binding=options.binding,
        ranks_per_gpu=options.ranks_per_gpu,
        max_restarts=options.max_restarts,
        run_dir=options.run_dir,
        fresh=options.fresh,
        resume=options.resume,
        hang_timeout_s=options.hang_timeout,
        stall_s=options.stall,
        shutdown_timeout_s=options.shutdown_timeout,
        grace_s=options.grace,
        min_ranks=options.min_ranks,
        show=parse_show(options.tee, options.redirects, merge=options.merge),
        log_dir=options.log_dir,
        master_addr=options.master_addr or "127.0.0.1",
        # without --rdzv it is the rendezvous port of several nodes, as for torchrun
        master_port=None if several and options.rdzv is None and options.rdzv_endpoint is None else options.master_port,
        nodes=nodes,
        env=parse_env(options.env or []),
    )


def _nodes(options: RunOptions) -> Nodes | None:
    if options.nnodes == "1" and options.rdzv is None and options.node_rank is None:
        return None
    from rankwise.launch.elastic.nodes import parse_nodes

    return parse_nodes(
        options.nnodes,
        rdzv=options.rdzv or (options.rdzv_endpoint if _several(options) else None),
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
        token_file=options.token_file,
        join_timeout_s=options.join_timeout,
        nproc=options.nproc,
        name=options.rdzv_id or "",
    )


def _in_slurm(job: Job, options: RunOptions) -> int | None:
    said = {name: getattr(options, name) for name in _SLURM} | {"nodes": options.slurm_nodes}
    defaults = {name: getattr(RunOptions, name) for name in _SLURM} | {"nodes": RunOptions.slurm_nodes}
    if said == defaults and not {"SLURM_JOB_ID", "SLURM_JOBID"} & os.environ.keys():
        return None
    return _run_in_slurm(job, said, nproc=options.nproc, dry_run=options.dry_run)


def _run_in_slurm(job: Job, words: dict[str, Any], *, nproc: str, dry_run: bool) -> int | None:
    """Submit with `--slurm`, or use all nodes inside an allocation; return the exit code, None without Slurm.

    Args:
        job: the launch as on one machine.
        words: the options for Slurm, by name.
        nproc: the option as given.
        dry_run: print only.

    Raises:
        ConfigError: the options contradict each other.
        LaunchError: Slurm is not installed or does not answer.
    """
    if words["slurm"]:
        return _submit(job, words, nproc=nproc, dry_run=dry_run)
    given = [name for name, value in words.items() if value and (name, value) not in {("nodes", 1), ("time", "1h")}]
    others = [name for name in given if name not in {"requeue", "max_requeues"}]
    if others:
        raise ConfigError(f"--{others[0].replace('_', '-')} is only valid for Slurm jobs: add --slurm")
    if job.nodes is not None:
        return None  # with named nodes, the user starts this command on each of them
    from rankwise.launch.slurm.allocation import Allocation
    from rankwise.launch.slurm.launcher import run_on_nodes

    allocation = Allocation.find(os.environ)
    most = _max_requeues(words, default=False)
    if allocation is None:
        if most:
            raise ConfigError("--requeue is only valid in a Slurm job: no SLURM_JOB_ID is set, or this is a task")
        return None
    if dry_run or (allocation.num_nodes == 1 and job.min_ranks is not None):
        return None  # one machine only
    return run_on_nodes(job, allocation, max_requeues=most).exitcode


def _max_requeues(words: dict[str, Any], *, default: bool) -> int:
    """Return the maximum number of requeues from --requeue, --no-requeue and --max-requeues."""
    wanted, most = words["requeue"], words["max_requeues"]
    if wanted is False and most:
        raise ConfigError(f"--no-requeue and --max-requeues {most} contradict each other: give one of them")
    if wanted is True and most == 0:
        raise ConfigError("--requeue and --max-requeues 0 contradict each other: give one of them")
    if most is not None:
        return int(most)
    from rankwise.launch.slurm.requeue import MAX_REQUEUES

    return MAX_REQUEUES if (default if wanted is None else wanted) else 0


def _submit(job: Job, words: dict[str, Any], *, nproc: str, dry_run: bool) -> int:
    from rankwise.launch.slurm.follower import follow
    from rankwise.launch.slurm.partition import parse_time
    from rankwise.launch.slurm.request import Request
    from rankwise.launch.slurm.submission import batch_script, submit

    gpus = words["gpus_per_node"]
    if gpus is not None and nproc not in {"auto", "gpu", str(gpus)}:
        raise ConfigError(f"--nproc {nproc} and --gpus-per-node {gpus} differ: there is one rank per GPU")
    if gpus is None and nproc in {"auto", "gpu", "cpu"} and nproc != "auto":
        raise ConfigError(
            f"--nproc {nproc} counts the devices of this machine: use --gpus-per-node G, or --nproc N on CPUs"
        )
    given = _pairs(words["slurm_arg"] or ())
    others = [key for key in given if key in _GPU_OPTIONS]
    if others and (gpus is not None or nproc == "auto"):
        raise ConfigError(
            f"--slurm-arg {others[0]} does not set the number of ranks per node: use --gpus-per-node G with one "
            f"rank per GPU, or add --nproc N{'' if gpus is None else ', not both'}"
        )
    name = words["job_name"] or Path(job.target.name).stem.partition(":")[0]
    parameters: dict[str, Any] = {key: words[key] for key in ("account", "qos", "constraint") if words[key]}
    request = Request(
        folder=(Path("runs") / "slurm" if job.run_dir is None else job.run_dir / "logs" / "slurm").absolute(),
        name=name,
        partition=words["partition"],
        nodes=words["nodes"],
        gpus_per_node=gpus,
        ranks_per_node=gpus or (1 if nproc == "auto" else int(nproc)),
        cpus_per_task=words["cpus_per_task"],
        mem=words["mem"],
        time_min=parse_time(words["time"]),
        parameters=parameters | given,
        container=words["container"],
        max_requeues=_max_requeues(words, default=True),
    )
    if dry_run:
        print(batch_script(request))
        return 0
    handle = submit(job, request)
    print(f"rankwise: submitted job {handle.job_id} ({name}), files in {handle.folder}", file=sys.stderr, flush=True)
    if words["detach"]:
        print(handle.job_id)
        return 0
    return follow(handle)


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """Parse `--slurm-arg key=value`, and `--slurm-arg key` for an option without a value."""
    pairs = {key: value if sign else True for key, sign, value in (w.removeprefix("--").partition("=") for w in words)}
    for key in pairs:
        if key.replace("_", "-") in _OUR_OPTIONS:
            raise ConfigError(f"--slurm-arg {key}: use --{key.replace('_', '-')}, which is checked before submission")
    return pairs


def parse_env(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `--env NAME=VALUE`.

    Raises:
        ConfigError: a pair without "=".
    """
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"--env must be NAME=VALUE, got {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)
