"""Find the rank that blocks the others in any hanging torch.distributed job, with every rank's stacks."""

from rankwise.diagnose.watch.agent import unwatch, watch, watch_if_asked
from rankwise.diagnose.watch.jobs import RunningJob, look_at, running_jobs

__all__ = ["RunningJob", "look_at", "running_jobs", "unwatch", "watch", "watch_if_asked"]
