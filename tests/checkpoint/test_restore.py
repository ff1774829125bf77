"""What becomes of each part at the same and at another number of ranks."""

import pytest
import torch

from rankwise.checkpoint import Checkpointer, RandomState
from rankwise.errors import CheckpointError
from rankwise.metrics import Max, Mean, Metrics, Sum
from rankwise.testing import run_ranks
from rankwise.world import World


class Partial:
    """Partial sums without a merge of their own."""

    scope = "reduced"

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"sum": torch.tensor([self.value, 1.0]), "deep": [self.value], "count": 2}

    def load_state_dict(self, state):
        self.value = state


class Part:
    def __init__(self, scope, state):
        self.scope = scope
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        if "refuse" in state:
            raise KeyError("weight")
        self.state = state


def group(world, begin, end):
    metrics = Metrics(loss=Mean(), count=Sum(), top=Max())
    for value in range(begin + world.rank, end, world.world_size):
        metrics["loss"].update(-value * 0.5, weight=value)
        metrics["count"].update(value)
        metrics["top"].update(-value)
    return metrics


def save(world, folder):
    Checkpointer(folder, world=world).save(
        4,
        {
            "metrics": group(world, 1, 8),
            "partial": Partial(float(world.rank + 1)),
            "random": RandomState(),
            "weights": {"w": 3},
        },
    )
    return group(world, 1, 15).reduce(world)


def restore(world, folder):
    parts = {"metrics": group(world, 0, 0), "partial": Partial(0.0), "random": RandomState(), "weights": {}}
    torch.manual_seed(99)
    before = torch.get_rng_state()
    report = Checkpointer(folder, world=world).restore(parts)
    untouched = torch.equal(before, torch.get_rng_state())
    more = group(world, 8, 15)
    total = parts["metrics"].merge_states([parts["metrics"].state_dict(), more.state_dict()])
    parts["metrics"].load_state_dict(total)
    partial = {key: value.tolist() if key == "sum" else value for key, value in parts["partial"].value.items()}
    return report, untouched, parts["metrics"].reduce(world), partial, parts["weights"]


@pytest.mark.parametrize(("saved", "restored"), [(2, 2), (2, 3), (3, 2), (3, 1), (1, 2)])
def test_running_metrics_continue_at_any_world_size(tmp_path, saved, restored):
    """The mean over both halves is that of an uninterrupted run; the report tells what became of each part."""
    wanted = run_ranks(save, saved, tmp_path)[0] if saved > 1 else save(World.single(), tmp_path)
    results = run_ranks(restore, restored, tmp_path) if restored > 1 else [restore(World.single(), tmp_path)]
    same = saved == restored
    for rank, (report, untouched, values, partial, weights) in enumerate(results):
        assert values == pytest.approx(wanted, rel=1e-12)
        assert weights == {"w": 3}
        assert report == results[0][0]
        assert (report.step, report.world_size, report.missing, report.surplus) == (4, saved, (), ())
        assert report.merged == (() if same else ("metrics", "partial"))
        assert report.rederived == (() if same else ("random",))
        assert untouched != same
        total = saved * (saved + 1) / 2
        if same:
            assert partial["sum"] == [rank + 1.0, 1.0]
        elif rank == 0:
            assert partial == {"sum": [total, saved], "deep": [total], "count": 2 * saved}
        else:
            assert partial == {"sum": [0.0, 0.0], "deep": [0.0], "count": 0}


def test_missing_parts_are_refused_unless_allowed(tmp_path):
    """Nothing is loaded when a part is missing; surplus parts are reported."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"a": {"x": 1}, "c": {"x": 2}})
    a, b = {}, {}
    with pytest.raises(CheckpointError, match=r"lacks b; it holds a, c. Pass allow_missing=\['b'\]"):
        checkpointer.restore({"a": a, "b": b})
    assert a == {}
    report = checkpointer.restore({"a": a, "b": b}, allow_missing=["b"])
    assert a == {"x": 1}
    assert (report.restored, report.missing, report.surplus) == (("a",), ("b",), ("c",))
    assert "missing: b" in str(report)


def test_a_part_that_refuses_its_state_is_named(tmp_path):
    """The error of a load names the part."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"model": Part("replicated", {"refuse": 1})})
    with pytest.raises(CheckpointError, match=r"the part 'model' cannot load its state .* KeyError"):
        checkpointer.restore({"model": Part("replicated", {})})


def test_another_scope_is_refused(tmp_path):
    """A part that was saved once cannot come back as everybody's own."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"model": Part("replicated", {})})
    with pytest.raises(CheckpointError, match="saved as 'replicated' but is restored as 'sharded'"):
        checkpointer.restore({"model": Part("sharded", {})})


def save_shards(world, folder):
    Checkpointer(folder, world=world).save(1, {"shard": Part("sharded", {"rank": world.rank})})


def test_shards_need_their_number_of_ranks(tmp_path):
    """At another world size sharded parts are refused, with the number that fits."""
    run_ranks(save_shards, 2, tmp_path)
    with pytest.raises(CheckpointError, match="restore it with 2 ranks, or leave the part out"):
        Checkpointer(tmp_path, world=World.single()).restore({"shard": Part("sharded", {})})


def test_a_single_part_can_be_read(tmp_path):
    """Without an object to load it into; an unknown name is answered with those that are there."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"plain": [1, 2], "part": Part("replicated", {"a": 1})})
    info = checkpointer.newest()
    assert checkpointer.read(info, "plain") == [1, 2]
    assert checkpointer.read(info, "part") == {"a": 1}
    with pytest.raises(CheckpointError, match="no part 'odd'; it holds plain, part"):
        checkpointer.read(info, "odd")
