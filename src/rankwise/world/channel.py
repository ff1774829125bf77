"""The process group behind a world, and where its next call stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from rankwise.errors import WorldError

__all__ = ["Channel", "frame_device"]


@dataclass(slots=True)
class Channel:
    """A process group and the calls made on it.

    Attributes:
        group: the torch process group.
        timeout: how long a call waits for the other ranks.
        device: where the frames travel: "cpu" if the group serves it, else the group's accelerator.
        calls: collectives that were made, equal on all ranks.
        broken: why the group is not usable any more, "" while it is.
    """

    group: Any
    timeout: timedelta
    device: str = "cpu"
    calls: int = 0
    broken: str = ""

    def __reduce__(self) -> NoReturn:
        raise WorldError(
            "a World with a process group cannot travel to another process: call World.current() there, "
            "or pass the numbers that are needed (world.rank, world.world_size)"
        )


def frame_device(group: Any) -> str:
    """Return where small messages of a group travel: the CPU if one of its backends serves it."""
    import torch
    import torch.distributed as dist

    served = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    if "cpu" in served:
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}" if "cuda" in served else served[0]
