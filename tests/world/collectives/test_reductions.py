"""reduce and all_reduce on real ranks, against NumPy over all ranks' trees in one process."""

import numpy as np
import pytest
import torch

from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.world import World

SIZES = [1, 5, 4000]


def tree_of(rank, size):
    rng = np.random.default_rng(rank)
    return {
        "loss": rng.normal(),
        "count": int(rng.integers(-(2**40), 2**40)),
        "done": bool(rank % 2),
        "double": rng.normal(size=size),
        "nested": [rng.integers(0, 200, (size, 2)).astype(np.int16), (torch.from_numpy(rng.normal(size=size)),)],
        "wide": torch.arange(2 * size).reshape(2, size).T + rank,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(float(rank)),
        "half": torch.full((size,), float(rank), dtype=torch.bfloat16),
        "numpy": np.float32(rank),
        "unsigned": np.array([2**63 + rank], np.uint64),
        "none": None,
    }


def run_all(world, size):
    mine = tree_of(world.rank, size)
    floats = {key: mine[key] for key in ("loss", "count", "double", "half", "numpy")}
    found = {op: world.all_reduce(mine, op) for op in ("sum", "min", "max")}
    return {**found, "mean": world.all_reduce(floats, "mean"), "to 1": world.reduce(mine, dst=1)}


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in leaves(item)]
    return [] if tree is None else [tree]


def plain(leaf):
    return leaf.double().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_all_kinds_against_one_process(num_ranks, size):
    """Every kind of leaf, inline and in collectives: the values of one process, the same bits on all ranks."""
    found = run_ranks(run_all, num_ranks, size)
    trees = [tree_of(rank, size) for rank in range(num_ranks)]
    ufuncs = {"sum": np.add, "min": np.minimum, "max": np.maximum}
    for op, ufunc in ufuncs.items():
        for i, got in enumerate(leaves(found[0][op])):
            parts = [plain(leaves(tree)[i]) for tree in trees]
            wanted = ufunc.reduce(np.stack(parts), axis=0)
            np.testing.assert_allclose(plain(got), wanted, rtol=1e-12)
            assert all(np.array_equal(plain(got), plain(leaves(other[op])[i])) for other in found)
    assert found[0]["mean"]["count"] == sum(tree["count"] for tree in trees) / num_ranks
    np.testing.assert_allclose(found[0]["mean"]["double"], np.mean([tree["double"] for tree in trees], 0), rtol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_kinds_shapes_and_dtypes_come_back(size):
    """Results are of the caller's kinds; one rank gives what two ranks give for (x, 0)."""
    alone, both = run_all(_single_with_two(), size), run_ranks(run_all, 2, size)[0]
    for op in ("sum", "min", "max"):
        mine = tree_of(0, size)
        for key, leaf in mine.items():
            one, two = alone[op][key], both[op][key]
            assert type(one) is type(two)
            if isinstance(leaf, (np.ndarray, torch.Tensor)):
                assert one.dtype == two.dtype == leaf.dtype
                assert one.shape == two.shape == leaf.shape


def _single_with_two():
    """A world of one whose `reduce` may name rank 1: only for comparing kinds."""
    world = World.single()
    return _Shift(world)


class _Shift:
    def __init__(self, world):
        self.world, self.rank, self.all_reduce = world, world.rank, world.all_reduce

    def reduce(self, tree, dst):
        return self.world.reduce(tree)


def test_reduce_gives_the_result_to_one_rank():
    """Rank 1 gets what all_reduce gives, the others None, small or large."""
    for size in (1, 4000):
        first, second = run_ranks(run_all, 2, size)
        assert first["to 1"] is None
        for one, two in zip(leaves(second["to 1"]), leaves(second["sum"]), strict=True):
            np.testing.assert_array_equal(plain(one), plain(two))


def count_collectives(world):
    import torch.distributed as dist

    counts = []
    originals = {}
    for name in ("all_gather", "all_reduce", "reduce", "broadcast", "gather", "all_gather_object", "barrier"):
        originals[name] = getattr(dist, name)
        setattr(dist, name, lambda *a, _f=originals[name], _n=name, **k: (counts.append(_n), _f(*a, **k))[1])
    try:
        results = {}
        for name, call in CALLS.items():
            counts.clear()
            call(world)
            results[name] = list(counts)
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)
    return results


CALLS = {
    "small": lambda w: w.all_reduce({"loss": 1.0, "n": 3, "x": torch.ones(20), "m": [np.ones(9)]}),
    "small max": lambda w: w.all_reduce({"loss": 1.0, "n": 3}, "max"),
    "one dtype": lambda w: w.all_reduce([torch.ones(500), torch.ones(700), np.ones(3, np.float32)]),
    "three dtypes": lambda w: w.all_reduce([torch.ones(500), 2, 1.0, np.ones(3, np.float32)]),
    "barrier": lambda w: w.barrier(),
    "small gather": lambda w: w.all_gather([1, torch.ones(w.rank)]),
    "large gather": lambda w: w.all_gather([1, torch.ones(900), 2.0]),
    "small object": lambda w: w.broadcast_object({"a": 1}),
    "large broadcast": lambda w: w.broadcast([torch.ones(900), np.ones(7, np.int8)]),
    "together": lambda w: w.raise_together(None),
}


def test_the_number_of_collectives():
    """A small call is exactly one collective; a larger reduction one more per dtype, anything else one more."""
    found = run_ranks(count_collectives, 2)[0]
    assert found == {
        "small": ["all_gather"],
        "small max": ["all_gather"],
        "one dtype": ["all_gather", "all_reduce"],
        "three dtypes": ["all_gather", "all_reduce", "all_reduce", "all_reduce"],
        "barrier": ["all_gather"],
        "small gather": ["all_gather"],
        "large gather": ["all_gather", "all_gather"],
        "small object": ["all_gather"],
        "large broadcast": ["all_gather", "broadcast"],
        "together": ["all_gather"],
    }


def overflow(world, size):
    try:
        world.reduce([2**62, 2**62, torch.ones(size)])
    except Exception as error:  # noqa: BLE001
        return str(error), world.all_reduce(1)
    return None


@pytest.mark.parametrize("size", [1, 4000])
def test_a_sum_beyond_64_bits_raises_on_every_rank(size):
    """Also where only one rank receives it: nobody goes on alone, and the group stays usable."""
    for message, total in run_ranks(overflow, 2, size):
        assert "does not fit in 64 bits" in message
        assert total == 2


def test_one_rank_checks_the_same_and_shares_nothing():
    """A world of one refuses what two ranks refuse, and returns copies."""
    world, mine = World.single(), {"x": torch.ones(3), "y": np.ones(3)}
    found = world.all_reduce(mine)
    found["x"] += 1
    found["y"] += 1
    assert torch.equal(mine["x"], torch.ones(3))
    assert np.array_equal(mine["y"], np.ones(3))
    with pytest.raises(ConfigError, match="no mean"):
        world.all_reduce(torch.ones(2, dtype=torch.int64), "mean")
    with pytest.raises(ConfigError, match="one of sum, mean, min, max"):
        world.all_reduce(1, "product")
    with pytest.raises(ConfigError, match="dst=1 is not a rank of this world: expected 0 to 0"):
        world.reduce(1, dst=1)


def run_named(world):
    import torch.distributed as dist

    kinds = dist.ReduceOp
    names = {
        "sum": ["SUM", kinds.SUM, kinds(kinds.SUM)],
        "mean": ["avg", "average", kinds.AVG],
        "min": [kinds.MIN],
        "max": [kinds.MAX, "Max"],
    }
    return {ours: [world.all_reduce(world.rank + 1.0, op) for op in [ours, *usual]] for ours, usual in names.items()}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_torchs_names_of_the_ops(num_ranks):
    """``ReduceOp.SUM``, "avg" and the like mean what they mean in torch; what we do not have is refused by name."""
    values = {1: (1.0, 1.0, 1.0, 1.0), 2: (3.0, 1.5, 1.0, 2.0)}[num_ranks]
    found = [run_named(World.single())] if num_ranks == 1 else run_ranks(run_named, 2)
    for rank in found:
        for (name, got), wanted in zip(rank.items(), values, strict=True):
            assert set(got) == {wanted}, name
    with pytest.raises(ConfigError, match="must be one of sum, mean, min, max, got 'product'"):
        World.single().reduce(1.0, torch.distributed.ReduceOp.PRODUCT)
