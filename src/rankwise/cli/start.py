"""`rankwise run` after parsing: build a job from the options, supervise it, and return the exit code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankwise.cli.options import RunOptions
from rankwise.cli.ranks import parse_env
from rankwise.launch.backend import supervise
from rankwise.launch.cores import count_ranks
from rankwise.launch.job import Job
from rankwise.launch.show import parse_show
from rankwise.launch.target import parse_target

if TYPE_CHECKING:
    from rankwise.launch.elastic.nodes import Nodes

__all__ = ["start_ranks"]

_UNNEEDED = (
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method"),
    *("role", "local_addr", "signals_to_handle"),
)
_SLURM = (
    *("slurm", "partition", "gpus_per_node", "time", "account", "qos", "constraint", "mem", "cpus_per_task"),
    *("job_name", "slurm_arg", "container", "detach", "requeue", "max_requeues"),
)


def start_ranks(words: RunOptions) -> int:
    """Run the launch; return the exit code.

    Raises:
        RankwiseError: the launch is not possible.
    """
    _say_unneeded(words)
    job = _job(words)
    exitcode = _in_slurm(job, words)
    if exitcode is not None:
        return exitcode
    if words.dry_run:
        from rankwise.launch.dry_run import describe_job

        print(describe_job(job))
        return 0
    return supervise(job).exitcode


def _several(words: RunOptions) -> bool:
    return words.nnodes not in {"1", "1:1"}


def _say_unneeded(words: RunOptions) -> None:
    given = {name: getattr(words, name) for name in _UNNEEDED}
    if _several(words):
        given |= {"rdzv_endpoint": None, "rdzv_id": None}
    if any(value is not None for value in given.values()):
        from rankwise.cli.torchrun_words import say_unneeded

        say_unneeded(**given)


def _job(words: RunOptions) -> Job:
    nodes = _nodes(words)
    several = _several(words)
    return Job(
        target=parse_target(words.words, as_module=words.module),
        num_ranks=1 if words.slurm else count_ranks(words.nproc, "--nproc", ranks_per_gpu=words.ranks_per_gpu),
        binding=words.binding,
        ranks_per_gpu=words.ranks_per_gpu,
        max_restarts=words.max_restarts,
        run_dir=words.run_dir,
        fresh=words.fresh,
        resume=words.resume,
        hang_timeout_s=words.hang_timeout,
        stall_s=words.stall,
        shutdown_timeout_s=words.shutdown_timeout,
        grace_s=words.grace,
        min_ranks=words.min_ranks,
        show=parse_show(words.tee, words.redirects, merge=words.merge),
        log_dir=words.log_dir,
        master_addr=words.master_addr or "127.0.0.1",
        # without --rdzv it is the rendezvous port of several nodes, as for torchrun
        master_port=None if several and words.rdzv is None and words.rdzv_endpoint is None else words.master_port,
        nodes=nodes,
        env=parse_env(words.env or []),
    )


def _nodes(words: RunOptions) -> Nodes | None:
    if words.nnodes == "1" and words.rdzv is None and words.node_rank is None:
        return None
    from rankwise.launch.elastic.nodes import parse_nodes

    return parse_nodes(
        words.nnodes,
        rdzv=words.rdzv or (words.rdzv_endpoint if _several(words) else None),
        node_rank=words.node_rank,
        master_addr=words.master_addr,
        master_port=words.master_port,
        token_file=words.token_file,
        join_timeout_s=words.join_timeout,
        nproc=words.nproc,
        name=words.rdzv_id or "",
    )


def _in_slurm(job: Job, words: RunOptions) -> int | None:
    said = {name: getattr(words, name) for name in _SLURM} | {"nodes": words.slurm_nodes}
    defaults = {name: getattr(RunOptions, name) for name in _SLURM} | {"nodes": RunOptions.slurm_nodes}
    if said == defaults and not {"SLURM_JOB_ID", "SLURM_JOBID"} & os.environ.keys():
        return None
    from rankwise.cli.slurm_start import run_in_slurm

    return run_in_slurm(job, said, nproc=words.nproc, dry_run=words.dry_run, environ=os.environ)
