"""How the ranks of a JAX program swap messages without a process group: over the keys of JAX's coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from rankwise.errors import WorldError

__all__ = ["KeyChannel"]


@dataclass(slots=True, eq=False)
class KeyChannel:
    """Messages of some ranks to all of them, under keys of their own.

    Attributes:
        client: JAX's client of its coordinator, or one with the same calls.
        name: what the keys begin with; each group of ranks has its own.
        rank: this rank among them.
        world_size: how many they are.
        timeout: how long a call waits for the other ranks.
        calls: collectives that were made, equal on all ranks.
        swaps: messages that were swapped for them.
        broken: why the channel is not usable any more, "" while it is.
    """

    client: Any
    name: str
    rank: int
    world_size: int
    timeout: timedelta
    calls: int = 0
    swaps: int = 0
    broken: str = ""

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
        self.client.key_value_set_bytes(self._key(self.swaps, self.rank), bytes(mine))
        patience_ms = max(1, int(self.timeout.total_seconds() * 1000))
        found = {self.rank: bytes(mine)}
        for rank in range(self.world_size):
            if rank in found:
                continue
            found[rank] = bytes(self.client.blocking_key_value_get_bytes(self._key(self.swaps, rank), patience_ms))
            if len(found) < self.world_size:
                # what else is there comes with one question: one for each of them would cost the keeper of the keys
                # time with the square of the ranks
                others = self.client.key_value_dir_get_bytes(f"{self.name}/{self.swaps}")
                found |= {int(key.rpartition("/")[2]): bytes(value) for key, value in others}
        # all have begun this swap, so all have read what was swapped before
        if self.swaps > 1:
            self.client.key_value_delete(self._key(self.swaps - 1, self.rank))
        return [found[rank] for rank in range(self.world_size)]

    def _key(self, swap: int, rank: int) -> str:
        return f"{self.name}/{swap}/{rank}"
