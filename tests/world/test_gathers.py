"""broadcast, gather and all_gather on real ranks."""

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
