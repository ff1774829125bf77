"""Measure where the time of a step goes on each rank, and how throughput scales with the number of ranks."""

from rankwise.diagnose.profile.advice import profile_traces
from rankwise.diagnose.profile.profile import Finding, Profile
from rankwise.diagnose.profile.runs import check_sweep, profile_script, sweep_setting
from rankwise.diagnose.profile.scaling import Scaling, measure_scaling
from rankwise.diagnose.script_run import Script

__all__ = [
    "Finding",
    "Profile",
    "Scaling",
    "Script",
    "check_sweep",
    "measure_scaling",
    "profile_script",
    "profile_traces",
    "sweep_setting",
]
