"""rankwise: data-parallel training in one piece.

The front door is a table of contents: each name is loaded when it is first used, so `import rankwise` loads neither
torch nor zarr nor numba. The names of the data rooms stay there: `rankwise.data.samples`, `.crops`, `.rows`.
"""

from typing import TYPE_CHECKING

from rankwise._lazy import door
from rankwise._version import __version__

__all__ = [
    "Checkpointer",
    "ConfigError",
    "Device",
    "Max",
    "Mean",
    "Min",
    "Order",
    "Platform",
    "RankFailure",
    "RankwiseError",
    "Sum",
    "Tracker",
    "Trainer",
    "World",
    "Wrapper",
    "__version__",
    "bind",
    "breakpoint",
    "guarded",
    "prepare",
    "run",
    "watch",
    "wrapper",
]

if TYPE_CHECKING:
    from rankwise.checkpoint import Checkpointer
    from rankwise.data.order import Order
    from rankwise.diagnose.watch import watch
    from rankwise.errors import ConfigError, RankFailure, RankwiseError
    from rankwise.guard import guarded
    from rankwise.launch import Device, Platform, Wrapper, breakpoint, run, wrapper  # noqa: A004
    from rankwise.metrics import Max, Mean, Min, Sum
    from rankwise.tracking import Tracker
    from rankwise.train import Trainer, prepare
    from rankwise.world import World, bind
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "Checkpointer": "rankwise.checkpoint",
            "Order": "rankwise.data.order",
            "watch": "rankwise.diagnose.watch",
            "ConfigError": "rankwise.errors",
            "RankFailure": "rankwise.errors",
            "RankwiseError": "rankwise.errors",
            "guarded": "rankwise.guard",
            "Device": "rankwise.launch",
            "Platform": "rankwise.launch",
            "Wrapper": "rankwise.launch",
            "breakpoint": "rankwise.launch",
            "run": "rankwise.launch",
            "wrapper": "rankwise.launch",
            "Max": "rankwise.metrics",
            "Mean": "rankwise.metrics",
            "Min": "rankwise.metrics",
            "Sum": "rankwise.metrics",
            "Tracker": "rankwise.tracking",
            "Trainer": "rankwise.train",
            "prepare": "rankwise.train",
            "World": "rankwise.world",
            "bind": "rankwise.world",
        },
        ("checkpoint", "data", "errors", "guard", "launch", "metrics", "tracking", "train", "vitals", "world"),
    )
