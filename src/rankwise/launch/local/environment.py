"""What a rank is started with: its cores (cores and threads), and its environment variables, torchrun's and ours."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.launch.hardware import Topology, num_usable_cores, read_topology
from rankwise.launch.job import Job

# variables that an outer launch left in this environment and that must not reach these ranks; RANKWISE_RUN_DIR and
# RANKWISE_RESUME belong to the user and stay, and so does RANKWISE_FRESH for the first attempt without an outer launch
_OURS = ("RANKWISE_FRESH", "RANKWISE_STORE_FILE", "RANKWISE_VITALS")
# variables that the ranks do not need: only supervisors use the token
_STALE = (*_OURS, "RANKWISE_TOKEN", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE")
_MAX_SECONDS = "RANKWISE_MAX_SECONDS"
# the ranks of this process's launches authenticate each other with this secret, see world/rendezvous/protocol
_SECRET = os.urandom(16).hex()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCores:
    """The cores and threads of one rank.

    Attributes:
        cpus: hardware threads that it may run on; None: all that the launcher may use.
        num_threads: its share of them, at least 1: the hardware threads divided by the ranks that share them, and at
            most its share of a container's quota.
    """

    cpus: frozenset[int] | None
    num_threads: int


def rank_cores(job: Job) -> list[RankCores]:
    """Return the cores of each rank of a launch on this machine."""
    return assign_cores(
        job.binding,
        job.num_ranks,
        topology=read_topology(visible=job.env.get("CUDA_VISIBLE_DEVICES")),
        usable_cores=num_usable_cores(),
        ranks_per_gpu=job.ranks_per_gpu or 1,
    )


def assign_cores(
    binding: str, num_ranks: int, *, topology: Topology, usable_cores: int, ranks_per_gpu: int = 1
) -> list[RankCores]:
    """Assign cores to every rank of this machine.

    Args:
        binding: "none": all cores. "numa": those of its GPU's NUMA node; without a GPU the ranks are spread over the
            nodes (several nodes per rank if there are fewer ranks). "core": its own part of these, whole cores if there
            are enough. "auto": "numa" if there are several nodes and the node of every rank's GPU is known. Else
            "none", as two independent launches would bind to the same cores.
        num_ranks: ranks on this machine.
        topology: the cores and GPUs that the launcher may use.
        usable_cores: how many of these cores a quota allows.
        ranks_per_gpu: how many ranks compute on one GPU.
    """
    gpus = [topology.gpus[rank // ranks_per_gpu : rank // ranks_per_gpu + 1] for rank in range(num_ranks)]
    near = [gpu[0] if gpu and gpu[0] in topology.nodes else None for gpu in gpus]
    if binding == "auto":
        binding = "numa" if len(topology.nodes) > 1 and None not in near else "none"
    part = max(1, usable_cores // num_ranks)
    if binding == "none":
        return [RankCores(cpus=None, num_threads=part)] * num_ranks
    threads_by_rank = _threads_of_nodes(near, topology)
    if binding == "core":
        threads_by_rank = _split_cores(threads_by_rank, topology)
    sharers = [threads_by_rank.count(threads) for threads in threads_by_rank]
    return [
        RankCores(cpus=frozenset(threads), num_threads=max(1, min(part, len(threads) // number)))
        for threads, number in zip(threads_by_rank, sharers, strict=True)
    ]


def _threads_of_nodes(near: Sequence[int | None], topology: Topology) -> list[tuple[int, ...]]:
    """Return for each rank the hardware threads of its node or nodes."""
    nodes, num_ranks, threads = sorted(topology.nodes), len(near), topology.threads
    home = {thread: node for node in nodes for thread in topology.nodes[node]}
    threads_by_rank = []
    for rank, node in enumerate(near):
        if node is not None:
            mine = [node]
        elif num_ranks < len(nodes):
            mine = nodes[rank * len(nodes) // num_ranks : (rank + 1) * len(nodes) // num_ranks]
        else:  # in proportion to the nodes' cores, whose number may differ under a CPU set
            mine = [home[threads[min(len(threads) - 1, (2 * rank + 1) * len(threads) // (2 * num_ranks))]]]
        threads_by_rank.append(tuple(thread for number in mine for thread in topology.nodes[number]))
    return threads_by_rank


def _split_cores(threads_by_rank: Sequence[tuple[int, ...]], topology: Topology) -> list[tuple[int, ...]]:
    """Split equal sets of threads among their ranks: whole cores, else single threads, else threads shared in turn."""
    split = []
    for rank, threads in enumerate(threads_by_rank):
        mine, sharers = threads_by_rank[:rank].count(threads), threads_by_rank.count(threads)
        cores = list(dict.fromkeys(topology.siblings[thread] for thread in threads))
        units = cores if len(cores) >= sharers else [(thread,) for thread in threads]
        first, last = mine * len(units) // sharers, (mine + 1) * len(units) // sharers
        chosen = units[first:last] or [units[mine % len(units)]]
        split.append(tuple(thread for unit in chosen for thread in unit))
    return split


@contextlib.contextmanager
def bound_to(cores: RankCores) -> Iterator[None]:
    """Bind this thread to a rank's cores; a process started inside is bound before it allocates memory."""
    if cores.cpus is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Which ranks of a world are on this machine; by default all of them.

    Attributes:
        world_size: ranks on all nodes.
        first_rank: global rank of this node's first rank; the others follow.
        node_rank: number of this node.
        num_nodes: number of nodes of the world.
        master_addr: where rank 0 listens.
        master_port: its port, held by the supervisor of its node.
        secret: with which the ranks of all nodes authenticate each other; "" takes this process's own secret.
        interface: network interface to the other nodes, "" leaves the choice to the libraries.
    """

    world_size: int
    first_rank: int = 0
    node_rank: int = 0
    num_nodes: int = 1
    master_addr: str
    master_port: int
    secret: str = ""
    interface: str = ""


def rank_environment(
    job: Job, part: Part, *, rank: int, cores: RankCores, attempt: int, run_id: str, vitals: Path
) -> dict[str, str]:
    """Return the whole environment of a rank.

    `OMP_NUM_THREADS` is the rank's share of the cores that this process may use, unless it is already set, or a single
    rank has all cores (torchrun sets 1, which leaves most of a machine idle).
    """
    local, size, local_size = str(rank - part.first_rank), str(part.world_size), str(job.num_ranks)
    env = {name: value for name, value in os.environ.items() if name not in _STALE}
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    env.setdefault("RANKWISE_SECRET", _SECRET)
    if part.secret:
        env["RANKWISE_SECRET"] = part.secret  # an outer launch may have left a different secret on each node
    if part.interface:
        # by default gloo uses the address of the host name, which other nodes may not be able to reach
        env.setdefault("GLOO_SOCKET_IFNAME", part.interface)
        env.setdefault("NCCL_SOCKET_IFNAME", f"={part.interface}")
    threads = job.num_threads
    if threads is None and job.num_ranks > 1 and "OMP_NUM_THREADS" not in env:
        threads = cores.num_threads
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env |= job.env
    env |= {"RANK": str(rank), "LOCAL_RANK": local, "ROLE_RANK": str(rank), "GROUP_RANK": str(part.node_rank)}
    env |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local_size, "ROLE_WORLD_SIZE": size}
    env |= {"GROUP_WORLD_SIZE": str(part.num_nodes), "ROLE_NAME": "default"}
    env |= {"MASTER_ADDR": part.master_addr, "MASTER_PORT": str(part.master_port)}
    env |= {
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "RANKWISE_VITALS": str(vitals),
        "RANKWISE_CORES": str(cores.num_threads),
    }
    if job.ranks_per_gpu is not None:
        env["RANKWISE_RANKS_PER_GPU"] = str(job.ranks_per_gpu)
    if job.run_dir is not None:
        env["RANKWISE_RUN_DIR"] = str(job.run_dir.absolute())
    by_user = "RANKWISE_VITALS" not in os.environ and os.environ.get("RANKWISE_FRESH") == "1"
    if (job.fresh or by_user) and attempt == 0:
        env["RANKWISE_FRESH"] = "1"
    if job.resume is not None:
        env["RANKWISE_RESUME"] = job.resume
    return env


def with_time_left(job: Job, begun_s: float) -> Job:
    """If the environment sets a time limit for the ranks, let it count from the start of the launch."""
    text = job.env.get(_MAX_SECONDS, os.environ.get(_MAX_SECONDS, ""))
    with contextlib.suppress(ValueError):
        left_s = max(1.0, float(text) - (time.monotonic() - begun_s))
        return replace(job, env={**job.env, _MAX_SECONDS: f"{left_s:g}"})
    return job
