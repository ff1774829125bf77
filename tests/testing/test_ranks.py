"""`run_ranks`: real ranks, reused; what fails is told with the rank and its traceback."""

import os
import signal
import time

import pytest

from rankwise.testing import RanksFailedError, run_ranks


def place(world, offset):
    return world.rank, world.world_size, world.all_reduce(world.rank + offset), os.getpid()


def test_ranks_are_real_and_stay_up():
    """Results come back by rank from separate processes, which serve the next call too."""
    first = run_ranks(place, 2, 10)
    assert [answer[:3] for answer in first] == [(0, 2, 21), (1, 2, 21)]
    assert len({answer[3] for answer in first} | {os.getpid()}) == 3
    assert run_ranks(place, 2, 10) == first
    assert run_ranks(lambda world: world.rank * 2, 2) == [0, 2]


def fails(world):
    if world.rank == 1:
        raise ValueError("the one that failed")
    world.barrier()


def test_a_failing_rank_is_reported_first():
    """Its traceback leads; the other one, which waits for it, is told as a consequence; the next call works again."""
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(fails, 2)
    assert next(iter(caught.value.tracebacks)) == 1
    assert "ValueError: the one that failed" in caught.value.tracebacks[1]
    assert run_ranks(lambda world: world.world_size, 2) == [2, 2]


def sleeps(world):
    if world.rank == 0:
        time.sleep(300)


def test_a_late_rank_is_named_with_its_stack():
    """The time limit ends the call; the stack shows where the rank was."""
    run_ranks(lambda world: world.barrier(), 2)  # the ranks are up: what follows is not their start
    with pytest.raises(RanksFailedError, match=r"gave no result within 8.0 s") as caught:
        run_ranks(sleeps, 2, timeout=8.0)
    assert list(caught.value.tracebacks) == [0]
    assert "in sleeps" in caught.value.tracebacks[0]


def dies(_world):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_rank_is_named():
    """A rank that is killed has no traceback; its status is told."""
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(dies, 1)
    assert "the process ended with -9" in caught.value.tracebacks[0]


def test_a_result_that_cannot_travel_is_an_error_of_its_rank():
    """The message says why it could not be pickled."""
    with pytest.raises(RanksFailedError, match="pickle"):
        run_ranks(lambda world: lambda: world, 1)
