"""This process's place among the ranks, its device, its process group, its seeds, and collectives on Python trees.

Each name is imported at its first use: a data loader needs only rank and world size, no process group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._lazy import door

__all__ = ["World", "bind", "seed_generators"]

if TYPE_CHECKING:
    from rankwise.world.binding import bind
    from rankwise.world.keys import seed_generators
    from rankwise.world.value import World
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "World": "rankwise.world.value",
            "bind": "rankwise.world.binding",
            "seed_generators": "rankwise.world.keys",
        },
    )
