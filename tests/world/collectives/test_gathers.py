"""broadcast, gather and all_gather on real ranks; all_gather(grad=True) against one process in float64."""

import numpy as np
import pytest
import torch

from rankwise.testing import run_ranks
from rankwise.world import World


def ragged(rank, size):
    return {
        "ids": torch.arange(size * rank),
        "rows": np.full((rank + 1, size, 2), rank, np.float16),
        "who": [rank, rank + 0.5, rank == 1, complex(rank)],
        "half": torch.full((3,), float(rank), dtype=torch.bfloat16),
        "flags": torch.ones(rank, dtype=torch.bool),
        "view": torch.arange(6.0).reshape(2, 3).T[:, rank % 2],
        "deep": (torch.tensor(float(rank)), {"none": None, "u": np.uint64(2**63 + rank)}),
    }


def same(one, two):
    """Whether two trees are equal: kinds, names, dtypes, shapes and values."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
    return one == two


SIZES = (0, 1, 900)


def gathers(world):
    """Runs on every rank."""
    trees = [ragged(world.rank, size) for size in SIZES]
    return [(world.all_gather(mine), world.gather(mine, dst=1), world.gather(mine)) for mine in trees]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_first_axes_may_differ(num_ranks):
    """Every rank's tree arrives exactly, empty and ragged parts too, in the frame or behind it; None off the root."""
    for rank, found in enumerate(run_ranks(gathers, num_ranks)):
        for size, (everywhere, to_one, to_main) in zip(SIZES, found, strict=True):
            wanted = [ragged(rank, size) for rank in range(num_ranks)]
            assert same(everywhere, wanted)
            assert same(to_one, wanted if rank == 1 else None)
            assert same(to_main, wanted if rank == 0 else None)


def test_one_rank_gathers_its_own():
    """Without others the tree comes back, in a list; another tree is told from it."""
    mine = ragged(1, 900)
    assert same(World.single().all_gather(mine), [mine])
    assert not same(World.single().all_gather(mine), [ragged(2, 900)])


def many_ragged(world):
    return world.all_gather([torch.arange(world.rank + i % 3) for i in range(200)])


def test_more_ragged_leaves_than_a_frame_holds():
    """With 200 ragged leaves the lengths themselves take another message."""
    for found in run_ranks(many_ragged, 2):
        assert same(found, [[torch.arange(rank + i % 3) for i in range(200)] for rank in range(2)])


def broadcasts(world, size):
    mine = {"x": torch.full((size, 2), float(world.rank)), "n": world.rank, "a": np.full(size, world.rank, np.int8)}
    return world.broadcast(mine, src=1), world.broadcast(mine), float(mine["x"].sum())


@pytest.mark.parametrize("size", [0, 3, 2000])
def test_broadcast_hands_out_one_ranks_tree(size):
    """All ranks get rank 1's (rank 0's) values; their own tree is left alone."""
    for rank, (from_one, from_main, mine) in enumerate(run_ranks(broadcasts, 3, size)):
        for src, found in ((1, from_one), (0, from_main)):
            same(found, {"x": torch.full((size, 2), float(src)), "n": src, "a": np.full(size, src, np.int8)})
        assert mine == rank * size * 2


def test_one_rank_gets_copies():
    """A world of one returns new memory, as several ranks do."""
    mine = torch.ones(3)
    world = World.single()
    for found in (world.broadcast(mine), world.gather(mine)[0], world.all_gather(mine)[0]):
        found.add_(1)
    assert torch.equal(mine, torch.ones(3))


def strided(world):
    """One row of a wide array on rank 0, several on the others: its column has one element and a stride of 2."""
    rows = world.rank * 2 + 1
    probs = torch.arange(2.0 * rows).reshape(rows, 2) + 100 * world.rank
    fields = np.zeros(rows, dtype=[("tag", "u1"), ("value", "f8")])
    fields["value"] = world.rank
    one = torch.arange(4.0).reshape(1, 4)[:, 3] + world.rank
    return {
        "column": world.all_gather(probs[:, 1]),
        "field": world.all_gather(fields["value"]),
        "sum": world.all_reduce(one),
        "sent": world.broadcast(one),
        "grad": [part.tolist() for part in world.all_gather(probs.clone().requires_grad_()[:, 1], grad=True)],
        "usable": world.all_reduce(1),
    }


def test_columns_of_one_row_travel():
    """A view of a single element with a stride, on one rank only, is gathered and reduced like any other."""
    for found in run_ranks(strided, 2):
        assert [part.tolist() for part in found["column"]] == [[1.0], [101.0, 103.0, 105.0]]
        assert [part.tolist() for part in found["field"]] == [[0.0], [1.0, 1.0, 1.0]]
        assert (found["sum"].tolist(), found["sent"].tolist()) == ([7.0], [3.0])
        assert found["grad"] == [[1.0], [101.0, 103.0, 105.0]]
        assert found["usable"] == 2


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
