"""Exchange messages between ranks of a JAX program without a process group, over its coordinator's key-value store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from rankwise.errors import WorldError

__all__ = ["KeyChannel"]


@dataclass(slots=True, eq=False)
class KeyChannel:
    """Exchanges messages among a group of ranks, under keys of its own.

    Attributes:
        client: JAX's client of its coordinator, or one with the same calls.
        name: prefix of the keys; unique per group of ranks.
        rank: this rank in the group.
        world_size: number of ranks in the group.
        timeout: how long a call waits for the other ranks.
        calls: number of collectives so far, equal on all ranks.
        swaps: number of message exchanges so far.
        senders: the job's rank of each rank in the group, for the keys: the client looks for the death of these.
        broken: why the channel is not usable any more, "" while it is.
    """

    client: Any
    name: str
    rank: int
    world_size: int
    timeout: timedelta
    calls: int = 0
    swaps: int = 0
    senders: tuple[int, ...] = ()
    broken: str = ""

    def __post_init__(self) -> None:
        self.senders = self.senders or tuple(range(self.world_size))

    def __reduce__(self) -> NoReturn:
        raise WorldError(
            "a World of several ranks cannot travel to another process: pass the numbers that are needed "
            "(world.rank, world.world_size)"
        )

    def swap(self, mine: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank; every rank calls it.

        Raises:
            RuntimeError: a rank is late by more than the timeout, or the coordinator is gone.
        """
        self.swaps += 1
        me = self.senders[self.rank]
        self.client.key_value_set_bytes(self._key(self.swaps, me), bytes(mine))
        patience_ms = max(1, int(self.timeout.total_seconds() * 1000))
        found = {me: bytes(mine)}
        for sender in self.senders:
            if sender in found:
                continue
            found[sender] = bytes(self.client.blocking_key_value_get_bytes(self._key(self.swaps, sender), patience_ms))
            if len(found) < self.world_size:
                # One request returns all messages that exist. One request per rank would cost the server time with the
                # square of the number of ranks.
                others = self.client.key_value_dir_get_bytes(f"{self.name}/{self.swaps}")
                found |= {int(key.rpartition("/")[2]): bytes(value) for key, value in others}
        # all ranks have begun this exchange, so all have read the messages of the previous one
        if self.swaps > 1:
            self.client.key_value_delete(self._key(self.swaps - 1, me))
        return [found[sender] for sender in self.senders]

    def _key(self, swap: int, sender: int) -> str:
        return f"{self.name}/{swap}/{sender}"
