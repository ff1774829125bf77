"""Start the ranks of this machine and watch them from a small supervisor that never imports torch; all end together."""

from typing import TYPE_CHECKING

from rankwise._lazy import door

__all__ = ["Device", "Job", "Outcome", "Platform", "Target", "Wrapper", "breakpoint", "run", "supervise", "wrapper"]

if TYPE_CHECKING:
    from rankwise.launch.backend import supervise
    from rankwise.launch.debugger import breakpoint  # noqa: A004
    from rankwise.launch.failures.outcome import Outcome
    from rankwise.launch.functions.caller import run
    from rankwise.launch.functions.decorator import Wrapper, wrapper
    from rankwise.launch.functions.platforms import Device, Platform
    from rankwise.launch.job import Job
    from rankwise.launch.target import Target
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "Device": "rankwise.launch.functions.platforms",
            "Job": "rankwise.launch.job",
            "Outcome": "rankwise.launch.failures.outcome",
            "Platform": "rankwise.launch.functions.platforms",
            "Target": "rankwise.launch.target",
            "Wrapper": "rankwise.launch.functions.decorator",
            "breakpoint": "rankwise.launch.debugger",
            "run": "rankwise.launch.functions.caller",
            "supervise": "rankwise.launch.backend",
            "wrapper": "rankwise.launch.functions.decorator",
        },
    )
