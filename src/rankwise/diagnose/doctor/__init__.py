"""Check that this machine, or this job, has what distributed training needs; without a training script."""

from rankwise.diagnose.doctor.check import Check, exit_code, render
from rankwise.diagnose.doctor.doctor import examine
from rankwise.diagnose.doctor.host import check_host
from rankwise.diagnose.doctor.variables import check_variables

__all__ = ["Check", "check_host", "check_variables", "examine", "exit_code", "render"]
