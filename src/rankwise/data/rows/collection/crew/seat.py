"""`Seat`: which of how many processes writes here, and by whose launch."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.world.place import Place

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["Seat", "take_seat"]

# What tells one launch, and one attempt of it, from another.
_LAUNCH = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "OMPI_MCA_ess_base_jobid",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process of those that write together.

    Attributes:
        rank: its rank.
        size: number of ranks.
        launch: the same for all of them, and for no others that are alive.
    """

    rank: int = 0
    size: int = 1
    launch: str = "alone"


def take_seat(world: World | Place | None) -> Seat:
    """Find who writes together.

    Args:
        world: the ranks; a place is enough where they have no process group. None = those of the process group that
            this process is in, else this process alone.
    """
    if world is None:
        world = _joined_world()
    if world is None or world.world_size == 1:
        return Seat()
    channel: Any = None if isinstance(world, Place) else world.channel
    if channel is None:
        words = [os.environ.get(name, "") for name in _LAUNCH]
        launch = hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()
    else:
        from rankwise.world.objects import broadcast_object

        launch = broadcast_object(world, secrets.token_hex(8), 0)  # type: ignore[arg-type]
    return Seat(rank=world.rank, size=world.world_size, launch=launch)


def _joined_world() -> World | None:
    """Return the world of the process group, without importing torch to find that there is none."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    from rankwise.world.adopt import current_world

    return current_world()
