"""Who am I: this process's place among the ranks, its device, its group, its seeds, and collectives on Python trees."""

from rankwise.world.binding import bind
from rankwise.world.keys import seed_generators
from rankwise.world.value import World

__all__ = ["World", "bind", "seed_generators"]
