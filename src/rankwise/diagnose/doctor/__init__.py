"""Around a run: does this machine, or this job, have what distributed training needs? No training script is needed."""

from rankwise.diagnose.doctor.check import Check, exit_code, render
from rankwise.diagnose.doctor.doctor import examine

__all__ = ["Check", "examine", "exit_code", "render"]
