"""Shared by all ways to create a world: its constructor, this machine's id, and one-time warnings."""

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
    """Warn once per process."""
    if text not in _said:
        _said.add(text)
        _log.warning(text)


def host_id() -> str:
    """Return host name and boot id: machines may share a host name, and containers of one machine share a boot id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else ''}"


def make_world(
    place: Place, company: Company, channel: Any, *, device: Any, backend: str, seed: int, threads: int
) -> World:
    """Return the world of a place, completed with the result of the meeting."""
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
