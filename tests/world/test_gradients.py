"""all_gather(grad=True) against one process in float64."""

import pytest
import torch

from rankwise.testing import run_ranks
from rankwise.world import World


def inputs(num_ranks):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(rank + 2, 3, generator=generator, dtype=torch.float64) for rank in range(num_ranks)]


def contrast(parts, rank):
    """A loss that mixes all ranks' rows, and differs from rank to rank."""
    rows = torch.cat(parts)
    return ((rows @ rows.T).logsumexp(1) * (rank + 1)).sum()


def backward(world):
    mine = inputs(world.world_size)[world.rank].requires_grad_()
    parts = world.all_gather({"x": mine * 2, "n": world.rank, "fixed": torch.ones(2)}, grad=True)
    assert [part["n"] for part in parts] == list(range(world.world_size))
    assert not parts[0]["fixed"].requires_grad
    contrast([part["x"] for part in parts], world.rank).backward()
    return mine.grad


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_gradients_are_those_of_one_process(num_ranks):
    """Ragged rows: each rank's input gets the gradient of the sum of all ranks' losses, to 1e-12."""
    whole = [part.requires_grad_() for part in inputs(num_ranks)]
    sum(contrast([part * 2 for part in whole], rank) for rank in range(num_ranks)).backward()
    found = run_ranks(backward, num_ranks) if num_ranks > 1 else [backward(World.single())]
    for part, grad in zip(whole, found, strict=True):
        torch.testing.assert_close(grad, part.grad, rtol=1e-12, atol=1e-12)


def partial(world):
    """Only another rank's part is used: the own gradient comes from the others alone."""
    mine = torch.full((2,), float(world.rank + 1), requires_grad=True)
    parts = world.all_gather(mine, grad=True)
    (parts[1 - world.rank] ** 2).sum().backward()
    return mine.grad.tolist()


def test_parts_that_a_rank_does_not_use_still_take_part():
    """A rank that ignores a part sends zeros for it; nobody hangs."""
    assert run_ranks(partial, 2) == [[2.0, 2.0], [4.0, 4.0]]
