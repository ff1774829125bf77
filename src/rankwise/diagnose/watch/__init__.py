"""Hangs end in an answer: who holds the others up, in any job of torch.distributed, with every rank's stacks."""

from rankwise.diagnose.watch.agent import unwatch, watch, watch_if_asked
from rankwise.diagnose.watch.jobs import RunningJob, look_at, running_jobs

__all__ = ["RunningJob", "look_at", "running_jobs", "unwatch", "watch", "watch_if_asked"]
