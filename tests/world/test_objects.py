"""Collectives of objects."""

import pytest

from rankwise.testing import run_ranks
from rankwise.world import World


def swap(world, size):
    mine = {"rank": world.rank, "text": "x" * (size * world.rank), "set": {1, world.rank}}
    return (
        world.all_gather_object(mine),
        world.gather_object(mine, dst=1),
        world.broadcast_object(mine, src=1),
        world.broadcast_object(mine if world.is_main else None),
    )


@pytest.mark.parametrize("size", [1, 5000])
def test_objects_arrive_whole(size):
    """Short ones inside the frame, long ones behind it, of different sizes per rank."""
    wanted = [{"rank": rank, "text": "x" * (size * rank), "set": {1, rank}} for rank in range(3)]
    for rank, found in enumerate(run_ranks(swap, 3, size)):
        assert found == (wanted, wanted if rank == 1 else None, wanted[1], wanted[0])


def test_one_rank_gets_a_copy():
    """A world of one pickles too: what cannot be pickled fails there already, and nothing is shared."""
    mine = [1]
    found = World.single().all_gather_object(mine)
    assert found == [[1]]
    assert found[0] is not mine
    assert World.single().broadcast_object(mine) is not mine
