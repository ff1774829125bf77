"""The variables of a rank: torchrun's names and meanings, and a few of our own."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from rankwise.launch.job import Job
from rankwise.launch.local.binding import Seat

__all__ = ["rank_environment"]

# what an outer launch has left in our own environment and must not reach these ranks; RANKWISE_RUN_DIR and
# RANKWISE_RESUME are the user's, and stay
_OURS = ("RANKWISE_FRESH", "RANKWISE_VITALS")
_STALE = (*_OURS, "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE")


# what the ranks of this process's launches show each other when they meet, see world/arrival
_SECRET = secrets.token_hex(16)


def rank_environment(
    job: Job, *, rank: int, seat: Seat, attempt: int, port: int, run_id: str, vitals: Path
) -> dict[str, str]:
    """Return the whole environment of a rank.

    `OMP_NUM_THREADS` is the rank's part of the cores that this process may use, unless it is set already or there is
    one rank only, which has all of them (torchrun forces 1, which leaves most of a machine idle).

    Args:
        job: the launch.
        rank: global rank; on one machine also the local one.
        seat: its part of the machine.
        attempt: which attempt of this launch, from 0.
        port: where rank 0 listens.
        run_id: name of this launch, the same for all of its attempts.
        vitals: folder for the vitals of this attempt.
    """
    size = str(job.num_ranks)
    env = {name: value for name, value in os.environ.items() if name not in _STALE}
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    env.setdefault("RANKWISE_SECRET", _SECRET)
    threads = job.num_threads
    if threads is None and job.num_ranks > 1 and "OMP_NUM_THREADS" not in env:
        threads = seat.num_threads
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env |= job.env
    env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank), "GROUP_RANK": "0"}
    env |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "ROLE_WORLD_SIZE": size, "GROUP_WORLD_SIZE": "1"}
    env |= {"ROLE_NAME": "default", "MASTER_ADDR": job.master_addr, "MASTER_PORT": str(port)}
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
