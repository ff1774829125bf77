"""Collectives of objects."""

import pytest

from rankwise.errors import ConfigError, WorldError
from rankwise.testing import run_ranks
from rankwise.world import World


def exchange(world, size):
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
    for rank, found in enumerate(run_ranks(exchange, 3, size)):
        assert found == (wanted, wanted if rank == 1 else None, wanted[1], wanted[0])


def test_one_rank_gets_a_copy():
    """A world of one pickles too: what cannot be pickled fails there already, and nothing is shared."""
    mine = [1]
    found = World.single().all_gather_object(mine)
    assert found == [[1]]
    assert found[0] is not mine
    assert World.single().broadcast_object(mine) is not mine


def made_once(world, size):
    calls = []

    def make():
        calls.append(world.rank)
        return {"text": "x" * size}

    return world.from_main(make), calls


@pytest.mark.parametrize("size", [1, 5000])
def test_what_the_main_rank_makes_arrives_everywhere(size):
    """The function runs on the main rank alone, whether its result fits the frame or not."""
    for rank, (found, calls) in enumerate(run_ranks(made_once, 3, size)):
        assert found == {"text": "x" * size}
        assert calls == ([0] if rank == 0 else [])


def failed(world, kind):
    def make():
        if kind == "raises":
            raise FileNotFoundError("no such catalogue")
        return lambda: None

    try:
        world.from_main(make)
    except (OSError, WorldError, ConfigError) as error:
        message = f"{type(error).__name__}: {error}"
    return message, world.all_reduce(1)


@pytest.mark.parametrize(("kind", "said"), [("raises", "no such catalogue"), ("no pickle", "cannot be pickled")])
def test_a_failure_of_the_main_rank_is_everybodys(kind, said):
    """No rank waits for what never comes, each hears the reason, and the group stays usable."""
    for rank, (message, reached) in enumerate(run_ranks(failed, 2, kind)):
        assert said in message
        assert message.startswith("DesyncError") == (rank == 1)
        assert reached == 2


def test_one_rank_makes_it_itself():
    """Without other ranks nothing is pickled."""
    made = object()
    assert World.single().from_main(lambda: made) is made
