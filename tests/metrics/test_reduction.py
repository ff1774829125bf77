"""`reduce` over real ranks equals one rank."""

import math

import numpy as np
import pytest
import torch

from rankwise.errors import ConfigError, DesyncError
from rankwise.metrics import Max, Mean, Metrics, Min, Sum, reduce
from rankwise.testing import run_ranks
from rankwise.world import World

# where each rank's share of 23 samples ends: ragged, and one rank with nothing
SPLITS = {1: [23], 2: [23, 23], 3: [4, 4, 23]}


def filled(begin, end):
    rng = np.random.default_rng(5)
    losses, labels = rng.normal(size=23) * 1e3, rng.integers(-(2**60), 2**60, size=23)
    weights = rng.choice([0.0, 0.25, 1.0, 3.0], size=23)
    metrics = {
        "loss": Mean(),
        "count": {"labels": Sum(), "weighted": Sum()},
        "top": Max(),
        "low": Min(),
        "never": Mean(),
        "flops": Sum(),
    }
    for low in range(begin, end, 3):
        part = slice(low, min(low + 3, end))
        metrics["loss"].update(torch.from_numpy(losses[part]), torch.from_numpy(weights[part]))
        metrics["count"]["labels"].update(labels[part])
        metrics["count"]["weighted"].update(losses[part], weights[part])
        metrics["top"].update(losses[part])
        metrics["low"].update(labels[part])
        metrics["flops"].update(2**70)
    return metrics


def share(world):
    ends = [0, *SPLITS[world.world_size]]
    return ends[world.rank], ends[world.rank + 1]


def reduce_share(world):
    metrics = filled(*share(world))
    values = reduce(metrics, world)
    return values, reduce(metrics, world, reset=True), reduce(metrics, world)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ragged_ranks_equal_one(num_ranks):
    """Integers are equal, floats to 1e-12; all ranks agree; reducing twice changes nothing; reset forgets."""
    wanted = reduce(filled(0, 23), World.single())
    wanted["flops"] = 2**70 * sum(
        -(-(end - begin) // 3) for begin, end in zip([0, *SPLITS[num_ranks]], SPLITS[num_ranks], strict=False)
    )
    results = run_ranks(reduce_share, num_ranks) if num_ranks > 1 else [reduce_share(World.single())]
    for values, again, after in results:
        assert list(values) == ["count/labels", "count/weighted", "flops", "loss", "low", "never", "top"]
        for name, value in values.items():
            assert type(value) is type(wanted[name])
            if isinstance(value, int):
                assert value == wanted[name]
            elif math.isnan(wanted[name]):
                assert math.isnan(value)
            else:
                assert math.isclose(value, wanted[name], rel_tol=1e-12)
        assert repr(again) == repr(values)
        assert repr(values) == repr(results[0][0])
        assert after["count/labels"] == 0
        assert math.isnan(after["loss"])


def count_collectives(world, num_metrics):
    """Collectives of torch.distributed, whatever World makes of the call."""
    from unittest import mock

    import torch.distributed as dist

    metrics = {f"metric {index}": [Mean, Sum, Max, Min][index % 4]() for index in range(num_metrics)}
    for metric in metrics.values():
        metric.update([0.5, 3])
    names = ["all_gather", "all_reduce", "broadcast", "gather", "reduce", "all_gather_object", "barrier"]
    with mock.patch.multiple(dist, **{name: mock.Mock(wraps=getattr(dist, name)) for name in names}):
        reduce(metrics, world)
        return sum(getattr(dist, name).call_count for name in names)


@pytest.mark.parametrize(("num_metrics", "num_collectives"), [(1, 1), (12, 1), (200, 2)])
def test_many_metrics_take_one_collective(num_metrics, num_collectives):
    """A dozen metrics of whatever kinds travel in one exchange; hundreds take one more for what does not fit."""
    assert run_ranks(count_collectives, 2, num_metrics) == [num_collectives] * 2


def update_only(world):
    if world.is_main:
        for _ in range(100):
            filled(0, 23)
    return True


def test_updates_do_not_communicate():
    """A rank may update while the others do nothing."""
    assert run_ranks(update_only, 2) == [True, True]


def reduce_different(world):
    names = {"loss": Mean(), "extra": Sum()} if world.rank == 1 else {"loss": Mean(), "hits": Sum()}
    with pytest.raises(DesyncError) as caught:
        reduce(names, world)
    return caught.value.ranks, str(caught.value)


def test_different_names_are_named_on_every_rank():
    """Nobody hangs, and the message says which rank has what."""
    for ranks, message in run_ranks(reduce_different, 3):
        assert ranks == (1,)
        assert "rank 1 lacks hits (Sum) has extra (Sum)" in message


def reduce_broken(world):
    with pytest.raises((ConfigError, DesyncError)) as caught:
        reduce({"loss": 3.0 if world.rank == 1 else Mean()}, world)
    return type(caught.value), str(caught.value)


def test_a_rank_with_a_bad_metric_fails_all():
    """The rank itself says what is wrong, the others name the rank."""
    first, second = run_ranks(reduce_broken, 2)
    assert first[0] is DesyncError
    assert "another rank failed: rank 1: ConfigError: loss is a float, not a metric" in first[1]
    assert second[0] is ConfigError


def test_names_that_meet_after_joining_are_refused():
    """'a/b' given twice would lose one."""
    with pytest.raises(ConfigError, match="two metrics have the name 'a/b'"):
        reduce({"a/b": Sum(), "a": {"b": Sum()}}, World.single())


def test_metrics_are_one_part_of_a_checkpoint():
    """The group's state is its members' states; other names are refused; merging nothing gives the empty state."""
    group = Metrics(loss=Mean(), top=Max())
    group["loss"].update([1.0, 2.0])
    group["top"].update(4)
    other = Metrics({"loss": Mean(), "top": Max()})
    other.load_state_dict(group.state_dict())
    assert other.reduce(World.single()) == {"loss": 1.5, "top": 4}
    other.load_state_dict(group.merge_states([]))
    assert math.isnan(other.reduce(World.single())["loss"])
    with pytest.raises(ConfigError, match="no is a int"):
        Metrics(no=3)
