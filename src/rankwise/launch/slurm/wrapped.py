"""Submit a task of `Wrapper` to Slurm: convert the platform's fields to a request."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.errors import ConfigError
from rankwise.launch.functions.pickled_call import pack_call
from rankwise.launch.functions.platforms import ADAPTER, DEFAULT_LOGS, Platform, make_folder
from rankwise.launch.job import Job
from rankwise.launch.show import parse_show
from rankwise.launch.slurm.handle import SlurmHandle
from rankwise.launch.slurm.request import Request
from rankwise.launch.slurm.submission import submit
from rankwise.launch.target import Target

__all__ = ["start_in_slurm"]


def start_in_slurm(
    platform: Platform, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SlurmHandle:
    """Submit a task and return immediately.

    With `num_ranks` the job has CPU ranks and no GPUs; else it has one rank for each of `n_gpus_per_node` GPUs.

    Args:
        platform: the resources to request.
        target: the task.
        args: its arguments.
        kwargs: its keyword arguments.

    Raises:
        ConfigError: Slurm refuses the job, or the cores cannot be divided among the ranks.
        LaunchError: Slurm is not installed.
    """
    ranks = platform.num_ranks or platform.n_gpus_per_node
    if platform.n_cpus_per_node % ranks:
        raise ConfigError(
            f"n_cpus_per_node={platform.n_cpus_per_node} cannot be split evenly among the {ranks} ranks of a node"
        )
    request = Request(
        folder=Path(platform.console_logs or DEFAULT_LOGS).absolute(),
        name=platform.name,
        partition=platform.partition,
        nodes=platform.n_nodes,
        gpus_per_node=None if platform.num_ranks is not None else platform.n_gpus_per_node,
        ranks_per_node=ranks,
        cpus_per_task=platform.n_cpus_per_node // ranks,
        mem=f"{platform.mem_per_node}G",
        time_min=platform.timeout_min,
        parameters=platform.slurm_additional_parameters or {},
        max_requeues=platform.max_requeues,
    )
    meeting = platform.store_file(secrets.token_hex(8))
    if meeting is not None:
        make_folder(meeting.parent)
    job = Job(
        target=Target(kind="call", name=os.devnull),
        num_ranks=ranks,
        show=parse_show("all"),
        env={} if meeting is None else {"RANKWISE_STORE_FILE": str(meeting)},
    )
    # `upon_finish` is not called on the ranks
    context = replace(platform, upon_finish=None)
    call = pack_call(target, args, kwargs, adapter=ADAPTER, context=context)
    return submit(job, request, call=call.data, upon_finish=platform.upon_finish)
