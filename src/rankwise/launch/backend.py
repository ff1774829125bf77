"""One call for both backends of a launch: all ranks on this machine, or this machine's ranks of a job on several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rankwise.launch.stage import ALONE, Stage

if TYPE_CHECKING:
    from rankwise.launch.job import Job
    from rankwise.launch.outcome import Outcome

__all__ = ["Backend", "backend_of", "supervise"]


class Backend(Protocol):
    """Starts the ranks of a job and watches them until they end."""

    def __call__(self, job: Job, stage: Stage = ..., /) -> Outcome:
        """Run the job; see `supervise`."""
        ...


def backend_of(job: Job) -> Backend:
    """Return the backend for a job: `elastic` if the job names other nodes, else `local`."""
    if job.nodes is not None:
        from rankwise.launch.elastic.supervisor import supervise_node

        return supervise_node
    from rankwise.launch.local.supervisor import supervise as supervise_local

    return supervise_local


def supervise(job: Job, stage: Stage = ALONE) -> Outcome:
    """Start the ranks, watch them, and restart all of them after a failure, up to `max_restarts` times.

    Call it in the main thread of a process without other threads. When it returns, no rank is left. If this process
    is killed, its ranks are killed too.

    Args:
        job: what to run.
        stage: the loop, console and spare process to use.

    Raises:
        LaunchError: the ranks cannot be started, or other nodes cannot be found or joined.
        ConfigError: the job has several nodes, but no token with which they could authenticate.
    """
    return backend_of(job)(job, stage)
