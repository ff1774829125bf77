"""Mismatched calls raise on every rank, name who differs, and leave the group usable."""

import pytest
import torch

from rankwise.errors import ConfigError, DesyncError
from rankwise.testing import run_ranks


def caught(world, call):
    """What a call raised, and whether the group still works afterwards."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        found = (type(error).__name__, str(error), getattr(error, "ranks", None))
    else:
        found = ("nothing", "", None)
    return (*found, world.all_reduce(1) == world.world_size)


def on_last(world, odd, common):
    return (odd if world.rank == world.world_size - 1 else common)()


MISMATCHES = {
    "op": (lambda w: w.barrier(), lambda w: w.all_reduce(1.0)),
    "reduce op": (lambda w: w.all_reduce(1.0, "mean"), lambda w: w.all_reduce(1.0)),
    "source": (lambda w: w.broadcast(1.0, src=1), lambda w: w.broadcast(1.0)),
    "kind": (lambda w: w.all_reduce(1), lambda w: w.all_reduce(1.0)),
    "structure": (lambda w: w.all_reduce([1.0]), lambda w: w.all_reduce((1.0,))),
    "key": (lambda w: w.all_reduce({"a": 1}), lambda w: w.all_reduce({"b": 1})),
    "shape": (lambda w: w.all_reduce(torch.ones(5000)), lambda w: w.all_reduce(torch.ones(4000))),
    "dtype": (lambda w: w.all_reduce(torch.ones(4).double()), lambda w: w.all_reduce(torch.ones(4))),
    "inner shape": (lambda w: w.all_gather(torch.ones(2, 3)), lambda w: w.all_gather(torch.ones(2, 4))),
    "object": (lambda w: w.all_gather_object(1), lambda w: w.gather_object(1)),
    "members": (lambda w: w.subgroup([0, 1]), lambda w: w.subgroup([0, 2])),
    "gradient": (
        lambda w: w.all_gather(torch.ones(2, requires_grad=True), grad=True),
        lambda w: w.all_gather(torch.ones(2), grad=True),
    ),
}


def mismatch(world, name):
    odd, common = MISMATCHES[name]
    return caught(world, lambda: on_last(world, lambda: odd(world), lambda: common(world)))


@pytest.mark.parametrize("name", MISMATCHES)
def test_every_rank_raises_and_names_the_rank_that_differs(name):
    """Rank 2 of 3 makes another call: all three raise at once with its number and both calls, and go on afterwards."""
    found = run_ranks(mismatch, 3, name)
    for kind, message, ranks, usable in found:
        assert kind == DesyncError.__name__
        assert ranks == (2,)
        assert "not as the others: rank 2\n" in message
        assert "ranks 0, 1: " in message
        assert "test_exchanging.py:" in message
        assert usable


FAILURES = {
    "leaf": (lambda w: w.all_reduce({"a": "text"}), lambda w: w.all_reduce({"a": 1.0}), ConfigError),
    "source": (lambda w: w.broadcast(1.0, src=9), lambda w: w.broadcast(1.0), ConfigError),
    "op": (lambda w: w.all_reduce(1.0, "product"), lambda w: w.all_reduce(1.0), ConfigError),
    "pickle": (lambda w: w.all_gather_object(lambda: 0), lambda w: w.all_gather_object(1), ConfigError),
    "integer": (lambda w: w.all_reduce(2**70), lambda w: w.all_reduce(1), ConfigError),
    "raise": (lambda w: w.raise_together(KeyError("lost")), lambda w: w.raise_together(None), KeyError),
}


def failure(world, name):
    odd, common, _ = FAILURES[name]
    return caught(world, lambda: on_last(world, lambda: odd(world), lambda: common(world)))


@pytest.mark.parametrize("name", FAILURES)
def test_a_rank_that_fails_on_its_own_takes_the_others_along(name):
    """The failing rank raises its own error, the others a DesyncError with its number and message; nobody waits."""
    first, second, own = run_ranks(failure, 3, name)
    assert own[0] == FAILURES[name][2].__name__
    for kind, message, ranks, usable in (first, second):
        assert kind == DesyncError.__name__
        assert ranks == (2,)
        assert "rank 2 failed in" in message
        assert own[0] in message
        assert usable
    assert own[3]


def two_differ(world):
    return caught(world, lambda: world.all_reduce(1.0, ("sum", "mean")[world.rank]))


def test_of_two_ranks_both_calls_are_shown():
    """With two ranks there is no majority: both descriptions are in the message of both."""
    for _, message, ranks, _ in run_ranks(two_differ, 2):
        assert ranks == ()
        assert "not as the others" not in message
        assert "rank 0: all_reduce(sum)" in message
        assert "rank 1: all_reduce(mean)" in message


def foreign(world):
    import torch.distributed as dist

    if world.rank == 1:
        from rankwise.world.frame import FRAME_BYTES

        mine = torch.zeros(FRAME_BYTES, dtype=torch.uint8)
        dist.all_gather([torch.empty_like(mine) for _ in range(2)], mine)
        return None
    found = []
    for _ in range(2):
        try:
            world.barrier()
        except Exception as error:  # noqa: BLE001
            found.append((type(error).__name__, str(error)))
    world.channel.broken = ""  # this mishap was arranged: the group goes back to the other tests
    world.channel.calls -= 1
    return found


def test_a_collective_of_somebody_else_is_recognised():
    """A rank that is in a collective of another library is named as that, and the group is not trusted any more."""
    first, second = run_ranks(foreign, 2)[0]
    assert first[0] == "DesyncError"
    assert "rank 1: something that is no call of rankwise" in first[1]
    assert second[0] == "WorldError"
    assert "cannot be used any more" in second[1]
