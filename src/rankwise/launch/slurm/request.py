"""The resources that a launch requests from Slurm, checked before submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.errors import ConfigError
from rankwise.launch.job import Job
from rankwise.launch.slurm.queue import Partition
from rankwise.launch.slurm.requeue import MAX_REQUEUES

_WARN_S = 120.0  # warn at most so long before the time limit
_WARN_SHARE = 4  # warn a short job after at least three quarters of its time


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Resources of a job, in Slurm's terms.

    Attributes:
        folder: folder for the job's files, which go into a folder named after the job id.
        name: name of the job.
        partition: None takes Slurm's default.
        nodes: number of nodes.
        gpus_per_node: None requests none.
        ranks_per_node: number of ranks (Slurm tasks) per node.
        cpus_per_task: cores of a rank, None takes Slurm's default.
        mem: memory of a node in Slurm's notation ("32G"); None takes Slurm's default.
        time_min: time limit in minutes.
        parameters: additional options of sbatch by name, unchanged; True is an option without a value.
        container: image in which the ranks run (`srun --container-image`, of the Pyxis plugin).
        max_requeues: how often a job is requeued after its ranks have saved or a node is lost; 0: never.
    """

    folder: Path
    name: str = "rankwise"
    partition: str | None = None
    nodes: int = 1
    gpus_per_node: int | None = None
    ranks_per_node: int = 1
    cpus_per_task: int | None = None
    mem: str | None = None
    time_min: int = 60
    parameters: Mapping[str, Any] = field(default_factory=dict)
    container: str | None = None
    max_requeues: int = MAX_REQUEUES

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node", "cpus_per_task", "time_min"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.max_requeues < 0:
            raise ConfigError(f"max_requeues must be at least 0, got {self.max_requeues}")
        if "array" in self.parameters:
            raise ConfigError(
                f"array={self.parameters['array']}: a job is one launch; submit one for each task, or call "
                "`rankwise run` in a batch script of your own with #SBATCH --array"
            )
        if "%" in str(self.folder):
            raise ConfigError(f"Slurm reads % in a path as a pattern: choose a folder other than {str(self.folder)!r}")

    @property
    def warn_s(self) -> float | None:
        """Seconds before the time limit at which ranks are asked to save; None: `signal` in the parameters sets it."""
        return None if "signal" in self.parameters else min(_WARN_S, self.time_min * 60 / _WARN_SHARE)

    def check(self, job: Job) -> None:
        """Check for errors that would otherwise appear only after the wait in the queue.

        Raises:
            ConfigError: the partition does not exist or can never run it, or the launch cannot run on several nodes.
            LaunchError: Slurm is not installed or does not answer.
        """
        if job.min_ranks is not None:
            raise ConfigError("--min-ranks is only valid on one machine: request fewer nodes from Slurm instead")
        own = {name.replace("_", "-"): value for name, value in self.parameters.items()}
        refusals = [
            found.refusal(
                nodes=self.nodes,
                # an sbatch option by its own name overrides ours, in its own units
                time_min=None if "time" in own else self.time_min,
                account=own.get("account"),
                cpus_per_node=self.ranks_per_node * (self.cpus_per_task or 1),
                gpus_per_node=self.gpus_per_node,
            )
            for found in Partition.find(own.get("partition", self.partition))
        ]
        if refusals and all(refusals):  # if several are named, one usable partition is enough
            raise ConfigError("; ".join(refusals))

    @property
    def described(self) -> str:
        """Return the requested resources as text, for messages."""
        names = ("account", "qos", "constraint", "reservation")
        own = {name: self.parameters[name] for name in names if name in self.parameters}
        asked = {"partition": self.partition, "nodes": self.nodes, "gpus-per-node": self.gpus_per_node, "mem": self.mem}
        return ", ".join(f"{name}={value}" for name, value in {**asked, **own}.items() if value is not None)

    def sbatch_parameters(self) -> dict[str, Any]:
        """Return the parameters for submitit's Slurm executor."""
        # the launcher warns the ranks on time, once they can be warned; submitit would make Slurm send SIGUSR2
        ours: dict[str, Any] = {"signal": "URG@1", "open-mode": "append"}
        ours |= {"requeue": True} if self.max_requeues else {"no-requeue": True}
        # submitit would wait for a result of each task; here the launcher answers for all of them
        ours |= {"nodes": self.nodes, "ntasks-per-node": self.ranks_per_node}
        given = {
            "job_name": self.name,
            "partition": self.partition,
            "gpus_per_node": self.gpus_per_node,
            "cpus_per_task": self.cpus_per_task,
            "mem": self.mem,
        }
        known = {name: value for name, value in given.items() if value is not None}
        known["time"] = self.time_min
        parameters = {name.replace("_", "-"): value for name, value in self.parameters.items()}
        return {
            **known,
            "use_srun": False,
            "setup": ["export SUBMITIT_LOG_LEVEL=CRITICAL"],
            "additional_parameters": ours | parameters,
        }
