"""Find the rank that blocks the others in any hanging torch.distributed job, with every rank's stacks."""

from rankwise.diagnose.watch.agent import unwatch, watch, watch_if_asked
from rankwise.diagnose.watch.jobs import RunningJob, inspect_run, running_jobs

__all__ = ["RunningJob", "inspect_run", "running_jobs", "unwatch", "watch", "watch_if_asked"]
