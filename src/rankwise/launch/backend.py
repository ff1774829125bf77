"""The backends of a launch behind one call: the ranks of this machine, or this machine's part of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rankwise.launch.stage import ALONE, Stage

if TYPE_CHECKING:
    from rankwise.launch.job import Job
    from rankwise.launch.outcome import Outcome

__all__ = ["Backend", "backend_of", "supervise"]


class Backend(Protocol):
    """Starts the ranks of a job and stays with them to their end."""

    def __call__(self, job: Job, stage: Stage = ..., /) -> Outcome:
        """Run the job; see `supervise`."""
        ...


def backend_of(job: Job) -> Backend:
    """Return what runs a job: `elastic` where it names other nodes, else `local`."""
    if job.nodes is not None:
        from rankwise.launch.elastic.supervisor import supervise_node

        return supervise_node
    from rankwise.launch.local.supervisor import supervise as supervise_local

    return supervise_local


def supervise(job: Job, stage: Stage = ALONE) -> Outcome:
    """Start the ranks, watch over them, start all of them again after a failure as often as the job allows.

    To be called in the main thread of a process without other threads. When it returns, no rank is left. If this
    process is killed, its ranks are killed too.

    Args:
        job: what to run.
        stage: where.

    Raises:
        LaunchError: the ranks cannot be started, or other nodes cannot be found or joined.
        ConfigError: several nodes, and no token that they could show each other.
    """
    return backend_of(job)(job, stage)
