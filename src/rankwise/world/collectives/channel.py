"""What a world talks over: a process group, or without one the key-value store of a coordinator."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from rankwise._shutdown import let_gloo_finish
from rankwise.errors import WorldError

_open: weakref.WeakSet[Channel] = weakref.WeakSet()
_closed_groups: list[weakref.ref[Any]] = []


@dataclass(slots=True, eq=False, weakref_slot=True)
class Channel:
    """A process group and the calls made on it.

    Attributes:
        group: the torch process group, None once it was left.
        timeout: how long a call waits for the other ranks.
        device: device of the frames: "cpu" if the group supports it, else the group's accelerator.
        calls: number of collectives so far, equal on all ranks.
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
            "a World with a process group cannot be sent to another process: call World.current() there, or pass the "
            "numbers that are needed (world.rank, world.world_size)"
        )

    def exchange(self, mine: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank, which have one size; every rank calls it.

        Raises:
            RuntimeError: a rank is late by more than the timeout, or has died.
        """
        import torch
        import torch.distributed as dist

        own = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self.device)
        found = torch.empty(dist.get_world_size(self.group), len(mine), dtype=torch.uint8, device=self.device)
        dist.all_gather(list(found.unbind()), own, group=self.group)
        return [message.tobytes() for message in found.cpu().numpy()]

    def close(self) -> None:
        """Drop the reference to the group; later calls raise."""
        if self.group is not None:
            _closed_groups.append(weakref.ref(self.group))
        self.group = None
        self.broken = self.broken or "it was left: the `with rankwise.bind()` block has ended"


def close_all() -> None:
    """Drop the reference of every world to its group.

    gloo's threads need the interpreter lock to free the tensors of the last collective. A group waits for its threads
    when its last reference is dropped. If a variable keeps the group alive until the interpreter's finalisation, the
    threads cannot get the lock any more, and torch ends the process with "terminate called without an active
    exception", although nothing failed.
    """
    for channel in list(_open):
        channel.close()


def never_free_groups() -> None:
    """In a forked child, never free the groups: the exit would wait for their threads, which only the parent has.

    A variable is not enough: the interpreter clears all variables when it ends.
    """
    for channel in list(_open):
        if channel.group is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel.group))


@atexit.register
def _close_at_exit() -> None:
    close_all()
    if any(group() is not None for group in _closed_groups):
        # another object, for example a DistributedDataParallel model, keeps a group: release the lock for its threads
        let_gloo_finish()


def frame_device(group: Any) -> str:
    """Return the device for small messages of a group: the CPU if one of its backends supports it."""
    import torch
    import torch.distributed as dist

    served = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    if "cpu" in served:
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}" if "cuda" in served else served[0]


@dataclass(slots=True, eq=False)
class KeyChannel:
    """Exchanges messages among ranks without a process group, under keys of its own in a coordinator's store.

    Attributes:
        client: JAX's client of its coordinator, or one with the same calls.
        name: prefix of the keys; unique per group of ranks.
        rank: this rank in the group.
        world_size: number of ranks in the group.
        timeout: how long a call waits for the other ranks.
        calls: number of collectives so far, equal on all ranks.
        exchanges: number of message exchanges so far.
        senders: the job's rank of each rank in the group, for the keys: the client looks for the death of these.
        broken: why the channel is not usable any more, "" while it is.
    """

    client: Any
    name: str
    rank: int
    world_size: int
    timeout: timedelta
    calls: int = 0
    exchanges: int = 0
    senders: tuple[int, ...] = ()
    broken: str = ""

    def __post_init__(self) -> None:
        self.senders = self.senders or tuple(range(self.world_size))

    def __reduce__(self) -> NoReturn:
        raise WorldError(
            "a World of several ranks cannot be sent to another process: pass the numbers that are needed (world.rank, "
            "world.world_size)"
        )

    def exchange(self, mine: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank; every rank calls it.

        Raises:
            RuntimeError: a rank is late by more than the timeout, or the coordinator is gone.
        """
        self.exchanges += 1
        me = self.senders[self.rank]
        self.client.key_value_set_bytes(self._key(self.exchanges, me), bytes(mine))
        patience_ms = max(1, int(self.timeout.total_seconds() * 1000))
        found = {me: bytes(mine)}
        for sender in self.senders:
            if sender in found:
                continue
            found[sender] = bytes(
                self.client.blocking_key_value_get_bytes(self._key(self.exchanges, sender), patience_ms)
            )
            if len(found) < self.world_size:
                # One request returns all messages that exist. One request per rank would cost the server time with the
                # square of the number of ranks.
                others = self.client.key_value_dir_get_bytes(f"{self.name}/{self.exchanges}")
                found |= {int(key.rpartition("/")[2]): bytes(value) for key, value in others}
        # all ranks have begun this exchange, so all have read the messages of the previous one
        if self.exchanges > 1:
            self.client.key_value_delete(self._key(self.exchanges - 1, me))
        return [found[sender] for sender in self.senders]

    def _key(self, exchange: int, sender: int) -> str:
        return f"{self.name}/{exchange}/{sender}"
