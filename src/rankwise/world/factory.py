"""What every way to a world needs: the value itself, this machine's name, and a word to the user."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Any

from rankwise._process.place import Place
from rankwise.world.arrival import Company
from rankwise.world.value import World

__all__ = ["host_id", "make_world", "say_once"]

_log = logging.getLogger("rankwise.world")
_said: set[str] = set()


def say_once(text: str) -> None:
    """Warn, the first time in this process."""
    if text not in _said:
        _said.add(text)
        _log.warning(text)


def host_id() -> str:
    """Machines may share a host name (containers), and containers of one machine a boot id: take both."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else ''}"


def make_world(
    place: Place, company: Company, channel: Any, *, device: Any, backend: str, seed: int, threads: int
) -> World:
    """Return the world of a place, filled up with what the meeting found."""
    return World(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size or company.local_size,
        node_rank=company.host if place.node_rank is None else place.node_rank,
        num_nodes=company.num_hosts if place.num_nodes is None else place.num_nodes,
        device=device,
        backend=backend,
        seed=seed,
        threads=threads,
        global_ranks=tuple(range(place.world_size)),
        channel=channel,
    )
