"""The Slurm job of this process, read from the launcher's environment variables."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise._process.slurm import expand_hosts, in_step
from rankwise.errors import ConfigError, WorldError

_MOST_NAMES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The Slurm job of this process.

    Attributes:
        job_id: Slurm's job id.
        num_nodes: number of nodes of the job.
        nodes: the nodes' names in Slurm's notation.
        restarts: how often it was requeued.
    """

    job_id: str
    num_nodes: int
    nodes: str = ""
    restarts: int = 0

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> Allocation | None:
        """Return the allocation whose launcher this process can be, None without one.

        Also None if there is no srun (in a container), and for a single task of srun, which is a rank itself.

        Raises:
            ConfigError: srun has started several launchers.
        """
        job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
        if not job_id or shutil.which("srun") is None:
            return None
        if in_step(environ):
            tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
            if tasks != "1":
                raise ConfigError(
                    f"srun has started rankwise run {tasks} times: leave srun out (rankwise run starts one supervisor "
                    "on each node itself), or start the ranks with `srun python` and rankwise.bind()"
                )
            return None
        return cls(
            job_id=job_id,
            num_nodes=int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1),
            nodes=environ.get("SLURM_JOB_NODELIST", ""),
            restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
        )

    def name_nodes(self, numbers: Sequence[int]) -> str:
        """Return "node node3", or "nodes node3, node5", for node numbers from 0."""
        try:
            hosts = expand_hosts(self.nodes)
            names = [hosts[number] for number in numbers]
        except (WorldError, IndexError):
            names = [f"{number} of {self.nodes}" for number in numbers]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"node{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMES])}{more}"
