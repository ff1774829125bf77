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
        assert "unlike the others: rank 2\n" in message
        assert "ranks 0, 1: " in message
        assert "test_handshake.py:" in message
        assert usable


class SpeechlessError(Exception):
    """An exception of a user's whose text cannot be made."""

    def __str__(self):
        raise RuntimeError("no text either")


def speechless(world):
    try:
        world.raise_together(SpeechlessError() if world.rank == 1 else None)
    except SpeechlessError:
        text = "its own"
    except DesyncError as error:
        text = str(error)
    return text, world.all_reduce(1)


def test_an_error_without_text_takes_the_others_along():
    """An exception whose `__str__` fails is told to the other ranks by its class; nobody is left waiting."""
    told = "rank 1 failed in raise_together() at collectives/test_handshake.py:"
    zero, one, two = run_ranks(speechless, 3)
    assert one == ("its own", 3)
    assert zero == two
    assert zero[0].startswith(told)
    assert zero[0].endswith("SpeechlessError (its text cannot be made)")


def unreadable(world):
    """An offer that can be made, and then cannot be read."""
    from rankwise.world.collectives.handshake import Call, exchange

    class Contribution:
        structure, payload_bytes = "", 8

        def payload(self):
            raise BufferError("the memory is gone")

    exchange(world, Call("barrier", "here"), Contribution)


FAILURES = {
    "leaf": (lambda w: w.all_reduce({"a": "text"}), lambda w: w.all_reduce({"a": 1.0}), ConfigError),
    "source": (lambda w: w.broadcast(1.0, src=9), lambda w: w.broadcast(1.0), ConfigError),
    "op": (lambda w: w.all_reduce(1.0, "product"), lambda w: w.all_reduce(1.0), ConfigError),
    "pickle": (lambda w: w.all_gather_object(lambda: 0), lambda w: w.all_gather_object(1), ConfigError),
    "integer": (lambda w: w.all_reduce(2**70), lambda w: w.all_reduce(1), ConfigError),
    "raise": (lambda w: w.raise_together(KeyError("lost")), lambda w: w.raise_together(None), KeyError),
    "payload": (unreadable, lambda w: w.barrier(), BufferError),
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


def left_out(world, calls):
    """The last rank leaves out the first of two equal calls, and comes to the second at once."""
    call = {"sum": world.all_reduce, "object": world.all_gather_object, "broadcast": world.broadcast}[calls]

    def both():
        if world.rank < world.world_size - 1:
            call(1)
        call(2)

    kind, message, ranks, _ = caught(world, both)
    return kind, message, ranks


@pytest.mark.parametrize("calls", ["sum", "object", "broadcast"])
def test_a_call_that_is_left_out_is_noticed_at_the_next_equal_one(calls):
    """Rank 2 skips a call and makes the next one of the same kind: no rank gets a value, all are told where each is."""
    for kind, message, ranks in run_ranks(left_out, 3, calls):
        assert kind == DesyncError.__name__
        assert "the same call in different places" in message
        assert ranks == ((2,) if calls != "broadcast" else ())
        assert message.count("test_handshake.py:") == 2


def branches(world):
    """What programs write in both branches of an if, and means one call."""
    if world.is_main:
        world.barrier()
        found = world.broadcast_object("from rank 0")
        parts = world.gather_object(0)
    else:
        world.barrier()
        found = world.broadcast_object(None)
        parts = world.gather_object(world.rank)
    return found, parts


def test_roots_and_barriers_may_stand_elsewhere():
    """The sender of a broadcast, the receiver of a gather and whoever waits may stand in a branch of their own."""
    assert run_ranks(branches, 3) == [("from rank 0", [0, 1, 2]), ("from rank 0", None), ("from rank 0", None)]


def on_one_rank_only(world, folder):
    """Rank 0 alone saves; the others are in their next sum."""
    from rankwise.checkpoint import Checkpointer

    checkpoints = Checkpointer(folder, world=world)
    other = lambda: world.all_reduce(1.0)  # noqa: E731
    return caught(world, (lambda: checkpoints.save(1, {})) if world.is_main else other)


def test_the_users_line_and_the_public_name_are_shown(tmp_path):
    """A save on rank 0 alone: the message names this file and `Checkpointer.save`, and no line of the library."""
    for kind, message, _, usable in run_ranks(on_one_rank_only, 3, str(tmp_path)):
        assert kind == DesyncError.__name__
        assert "test_handshake.py:" in message
        assert "(in Checkpointer.save)" in message
        assert "checkpoint/" not in message
        assert usable


def two_differ(world):
    return caught(world, lambda: world.all_reduce(1.0, ("sum", "mean")[world.rank]))


def test_of_two_ranks_both_calls_are_shown():
    """With two ranks there is no majority: both descriptions are in the message of both."""
    for _, message, ranks, _ in run_ranks(two_differ, 2):
        assert ranks == ()
        assert "unlike the others" not in message
        assert "rank 0: all_reduce(sum)" in message
        assert "rank 1: all_reduce(mean)" in message


def foreign(world):
    import torch.distributed as dist

    if world.rank == 1:
        from rankwise.world.collectives.handshake import FRAME_BYTES

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
    assert "rank 1: a call that is not from rankwise" in first[1]
    assert second[0] == "WorldError"
    assert "the group cannot be used:" in second[1]
