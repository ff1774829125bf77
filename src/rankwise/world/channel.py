"""The process group behind a world, and where its next call stands."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from rankwise._shutdown import let_gloo_finish
from rankwise.errors import WorldError

__all__ = ["Channel", "close_all", "frame_device", "keep_for_ever"]


_open: weakref.WeakSet[Channel] = weakref.WeakSet()
_left: list[weakref.ref[Any]] = []


@dataclass(slots=True, eq=False, weakref_slot=True)
class Channel:
    """A process group and the calls made on it.

    Attributes:
        group: the torch process group, None once it was left.
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

    def __post_init__(self) -> None:
        _open.add(self)

    def __reduce__(self) -> NoReturn:
        raise WorldError(
            "a World with a process group cannot travel to another process: call World.current() there, "
            "or pass the numbers that are needed (world.rank, world.world_size)"
        )

    def close(self) -> None:
        """Let go of the group; calls from now on say so."""
        if self.group is not None:
            _left.append(weakref.ref(self.group))
        self.group = None
        self.broken = self.broken or "it was left: the `with rankwise.bind()` block has ended"


def close_all() -> None:
    """Let go of every group that a world still refers to.

    gloo's threads need the interpreter to free the tensors of the last collective. A group that is freed with its last
    reference waits for its threads; one that a variable keeps alive into the interpreter's finalisation meets threads
    that cannot get the interpreter any more, and torch ends the process with "terminate called without an active
    exception" although all went well.
    """
    for channel in list(_open):
        channel.close()


def keep_for_ever() -> None:
    """In a forked child: never free the groups, whose threads stayed in the parent and would be waited for at the exit.

    A variable would not do: the interpreter clears all of them when it ends.
    """
    for channel in list(_open):
        if channel.group is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel.group))


@atexit.register
def _leave_in_peace() -> None:
    close_all()
    if any(group() is not None for group in _left):
        # something else, a DistributedDataParallel model perhaps, keeps a group: give its threads the interpreter
        let_gloo_finish()


def frame_device(group: Any) -> str:
    """Return where small messages of a group travel: the CPU if one of its backends serves it."""
    import torch
    import torch.distributed as dist

    served = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    if "cpu" in served:
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}" if "cuda" in served else served[0]
