"""barrier, raise_together and subgroups."""

import pytest
import torch.distributed as dist

from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.world import World


def pairs(world):
    """Two subgroups at once, one of them of a single rank, and a subgroup of a subgroup."""
    first, second = world.subgroup([2, 0]), world.subgroup([1])
    mine = first or second
    inner = first.subgroup([1]) if first else None
    again = first.subgroup([0, 1]) if first else None
    return {
        "none": (first is None, second is None),
        "who": (mine.rank, mine.world_size, mine.global_ranks, mine.local_rank),
        "sum": mine.all_reduce(world.rank),
        "large": mine.all_gather_object("x" * 2000 + str(world.rank))[-1][-1],
        "inner": inner and (inner.rank, inner.world_size, inner.global_ranks, inner.all_reduce(7)),
        "again": again and (again.global_ranks, again.broadcast(world.rank, src=1)),
        "root": first and first.gather(world.rank, dst=1),
    }


def test_subgroups_are_worlds():
    """Members are renumbered in ascending order and keep their global ranks; others get None; nesting works."""
    zero, one, two = run_ranks(pairs, 3)
    assert [zero["none"], one["none"], two["none"]] == [(False, True), (True, False), (False, True)]
    assert zero["who"] == (0, 2, (0, 2), 0)
    assert one["who"] == (0, 1, (1,), 1)
    assert two["who"] == (1, 2, (0, 2), 2)
    assert [zero["sum"], one["sum"], two["sum"]] == [2, 1, 2]
    assert [zero["large"], one["large"], two["large"]] == ["2", "1", "2"]
    assert zero["inner"] is None
    assert two["inner"] == (0, 1, (2,), 7)
    assert zero["again"] == two["again"] == ((0, 2), 2)
    assert (zero["root"], two["root"]) == (None, [0, 2])


def unequal_numbers_of_groups(world):
    """Rank 1 is in more groups than rank 2 when both make one of their own, twice, and once more the same."""
    first, second = world.subgroup([0, 1]), world.subgroup([1, 2])
    inner = [second.subgroup([0, 1]) for _ in range(3)] if second else []
    return first and first.all_reduce(1), [group.all_reduce(world.rank) for group in inner]


def test_members_of_different_numbers_of_groups_meet():
    """A subgroup of a subgroup is made at once, however many other groups its members are in."""
    assert run_ranks(unequal_numbers_of_groups, 3, timeout=120) == [(2, []), (2, [3, 3, 3]), (None, [3, 3, 3])]


def desync_inside(world):
    group = world.subgroup([1, 2])
    if group is None:
        return None
    try:
        group.raise_together(KeyError("gone") if group.rank == 1 else None)
    except Exception as error:  # noqa: BLE001
        return str(error), getattr(error, "ranks", None)


def again_and_again(world):
    part = world.subgroup([0, 2])
    names = []
    for _ in range(4 if part else 0):
        inner = part.subgroup([0, 1])
        assert inner.all_reduce(1) == 2
        names.append(inner.channel.group.group_name)
        group, inner.channel.group = inner.channel.group, None
        dist.destroy_process_group(group)
    return names


def test_a_group_that_was_left_is_made_anew_under_another_name():
    """Under the old one a rank that is early would find old addresses, and wait there until the time-out."""
    first, second, third = run_ranks(again_and_again, 3)
    assert first == third
    assert len(set(first)) == 4
    assert second == []


def test_errors_in_a_subgroup_name_global_ranks():
    """Rank 1 of the subgroup is rank 2 of the job, and is called that."""
    _, (message, ranks), _ = run_ranks(desync_inside, 3)
    assert ranks == (2,)
    assert message.startswith("rank 2 failed in raise_together()")


@pytest.mark.parametrize("ranks", [[], [0, 0], [1], [-1]])
def test_members_must_be_ranks(ranks):
    """Empty, repeated and unknown ranks are refused, on one rank too."""
    with pytest.raises(ConfigError, match="a subgroup needs at least one rank"):
        World.single().subgroup(ranks)


def test_one_rank_raises_its_own_error():
    """raise_together without others: the error, or nothing."""
    World.single().barrier()
    World.single().raise_together(None)
    with pytest.raises(KeyError):
        World.single().raise_together(KeyError("x"))


def waits(world):
    import time

    marks = []
    for turn in range(3):
        if world.rank == turn:
            time.sleep(0.2)  # the slow rank; whoever leaves the barrier has waited for it
            marks.append(time.monotonic())  # one clock for all processes of a machine
        world.barrier()
        marks.append(time.monotonic())
    return marks


def test_a_barrier_waits_for_the_slowest():
    """Nobody leaves a barrier before the last rank has arrived."""
    found = run_ranks(waits, 3)
    for turn in range(3):
        arrived = found[turn][turn]
        left = [marks[turn + (1 if rank <= turn else 0)] for rank, marks in enumerate(found)]
        assert min(left) >= arrived
