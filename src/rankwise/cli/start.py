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
    from collections.abc import Mapping, Sequence

    from rankwise.launch.elastic.nodes import Nodes
    from rankwise.launch.slurm.request import Request

_UNNEEDED = (
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method"),
    *("role", "local_addr", "signals_to_handle"),
)
# options that only a submitted job has
_ONLY_SLURM = (
    *("partition", "gpus_per_node", "time", "account", "qos", "constraint", "mem", "cpus_per_task"),
    *("job_name", "slurm_arg", "container", "detach", "slurm_nodes"),
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
    _warn_unneeded(options)
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


def _warn_unneeded(options: RunOptions) -> None:
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
    """Submit with `--slurm`, or use all nodes inside an allocation; return the exit code, None without Slurm.

    Raises:
        ConfigError: the options contradict each other.
        LaunchError: Slurm is not installed or does not answer.
    """
    if options.slurm:
        return _submit(job, options)
    for name in _ONLY_SLURM:
        value = getattr(options, name)
        if value and value != getattr(RunOptions, name):
            flag = "nodes" if name == "slurm_nodes" else name.replace("_", "-")
            raise ConfigError(f"--{flag} is only valid for Slurm jobs: add --slurm")
    in_job = bool({"SLURM_JOB_ID", "SLURM_JOBID"} & os.environ.keys())
    says_requeue = options.requeue is not None or options.max_requeues is not None
    # with named nodes, the user starts this command on each of them
    if job.nodes is not None or not (in_job or says_requeue):
        return None
    from rankwise.launch.slurm.allocation import Allocation
    from rankwise.launch.slurm.launcher import run_on_nodes

    allocation = Allocation.find(os.environ)
    most = _max_requeues(options, default=False)
    if allocation is None:
        if most:
            raise ConfigError("--requeue is only valid in a Slurm job: no SLURM_JOB_ID is set, or this is a task")
        return None
    if options.dry_run or (allocation.num_nodes == 1 and job.min_ranks is not None):
        return None  # one machine only
    return run_on_nodes(job, allocation, max_requeues=most).exitcode


def _max_requeues(options: RunOptions, *, default: bool) -> int:
    """Return the maximum number of requeues from --requeue, --no-requeue and --max-requeues."""
    wanted, most = options.requeue, options.max_requeues
    if wanted is False and most:
        raise ConfigError(f"--no-requeue and --max-requeues {most} contradict each other: give one of them")
    if wanted is True and most == 0:
        raise ConfigError("--requeue and --max-requeues 0 contradict each other: give one of them")
    if most is not None:
        return most
    from rankwise.launch.slurm.requeue import MAX_REQUEUES

    return MAX_REQUEUES if (default if wanted is None else wanted) else 0


def _submit(job: Job, options: RunOptions) -> int:
    from rankwise.launch.slurm.handle import follow
    from rankwise.launch.slurm.submission import batch_script, submit

    request = _request(job, options)
    if options.dry_run:
        print(batch_script(request))
        return 0
    handle = submit(job, request)
    told = f"submitted job {handle.job_id} ({handle.name}), files in {handle.folder}"
    print(f"rankwise: {told}", file=sys.stderr, flush=True)
    if options.detach:
        print(handle.job_id)
        return 0
    return follow(handle)


def _request(job: Job, options: RunOptions) -> Request:
    """Return the resources that the options name."""
    from rankwise.launch.slurm.queue import parse_time
    from rankwise.launch.slurm.request import Request

    given = _pairs(options.slurm_arg or ())
    named = {"account": options.account, "qos": options.qos, "constraint": options.constraint}
    return Request(
        folder=(Path("runs") / "slurm" if job.run_dir is None else job.run_dir / "logs" / "slurm").absolute(),
        name=options.job_name or Path(job.target.name).stem.partition(":")[0],
        partition=options.partition,
        nodes=options.slurm_nodes,
        gpus_per_node=options.gpus_per_node,
        ranks_per_node=_ranks_per_node(options, given),
        cpus_per_task=options.cpus_per_task,
        mem=options.mem,
        time_min=parse_time(options.time),
        parameters={name: value for name, value in named.items() if value} | given,
        container=options.container,
        max_requeues=_max_requeues(options, default=True),
    )


def _ranks_per_node(options: RunOptions, given: Mapping[str, Any]) -> int:
    """Return the number from --nproc and --gpus-per-node, which must agree.

    Args:
        options: the options.
        given: the options of sbatch from --slurm-arg.
    """
    nproc, gpus = options.nproc, options.gpus_per_node
    if gpus is not None and nproc not in {"auto", "gpu", str(gpus)}:
        raise ConfigError(f"--nproc {nproc} and --gpus-per-node {gpus} differ: there is one rank per GPU")
    if gpus is None and nproc in {"gpu", "cpu"}:
        raise ConfigError(
            f"--nproc {nproc} counts the devices of this machine: use --gpus-per-node G, or --nproc N on CPUs"
        )
    others = [key for key in given if key in _GPU_OPTIONS]
    if others and (gpus is not None or nproc == "auto"):
        raise ConfigError(
            f"--slurm-arg {others[0]} does not set the number of ranks per node: use --gpus-per-node G with one "
            f"rank per GPU, or add --nproc N{'' if gpus is None else ', not both'}"
        )
    return gpus or (1 if nproc == "auto" else count_ranks(nproc, "--nproc"))


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
