"""The environment variables of a rank: torchrun's names and meanings, and some of rankwise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankwise.launch.job import Job
from rankwise.launch.local.binding import Seat

__all__ = ["Part", "rank_environment"]

# variables that an outer launch left in this environment and that must not reach these ranks; RANKWISE_RUN_DIR and
# RANKWISE_RESUME belong to the user and stay
_OURS = ("RANKWISE_FRESH", "RANKWISE_STORE_FILE", "RANKWISE_VITALS")
# variables that the ranks do not need: only supervisors use the token
_STALE = (*_OURS, "RANKWISE_TOKEN", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE")


# the ranks of this process's launches authenticate each other with this secret, see world/rendezvous/arrival
_SECRET = os.urandom(16).hex()


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
    job: Job, part: Part, *, rank: int, seat: Seat, attempt: int, run_id: str, vitals: Path
) -> dict[str, str]:
    """Return the whole environment of a rank.

    `OMP_NUM_THREADS` is the rank's share of the cores that this process may use, unless it is already set, or a single
    rank has all cores (torchrun sets 1, which leaves most of a machine idle).

    Args:
        job: the launch.
        part: which ranks of the world are on this machine.
        rank: global rank.
        seat: its cores and threads.
        attempt: number of the attempt in this launch, from 0.
        run_id: name of this launch, the same for all of its attempts.
        vitals: folder for the vitals of this attempt.
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
        threads = seat.num_threads
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
        "RANKWISE_CORES": str(seat.num_threads),
    }
    if job.ranks_per_gpu is not None:
        env["RANKWISE_RANKS_PER_GPU"] = str(job.ranks_per_gpu)
    if job.run_dir is not None:
        env["RANKWISE_RUN_DIR"] = str(job.run_dir.absolute())
    if job.fresh and attempt == 0:
        env["RANKWISE_FRESH"] = "1"
    if job.resume is not None:
        env["RANKWISE_RESUME"] = job.resume
    return env
