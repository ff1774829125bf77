"""Where the time of a step goes, rank by rank, and what more ranks make of it."""

from rankwise.diagnose.profile.profile import Finding, Profile, profile_traces
from rankwise.diagnose.profile.running import Script, profile_script, sweep_setting

__all__ = ["Finding", "Profile", "Script", "profile_script", "profile_traces", "sweep_setting"]
