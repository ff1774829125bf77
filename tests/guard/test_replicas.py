"""Ranks that do not hold one model, or do not add up its gradients, are told so; those that do hear nothing."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankwise import guarded, prepare
from rankwise.errors import GuardError
from rankwise.testing import run_ranks
from rankwise.train import ExactStep


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


def inputs(world, number, size=6):
    generator = torch.Generator().manual_seed(1000 * number + world.rank)
    return torch.randn(size, 4, generator=generator)


def num_hooks(model):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def train(world, model, *, steps=4, call=None, spoil=None, optimizer=None, micro=1, wasteful=False, **options):
    """A plain loop, watched; returns what was found, and whether it was raised."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    before = num_hooks(model)
    guard = guarded(model, optimizer=optimizer, world=world, **options)
    caught = None
    try:
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(micro):
                synchronised = part == micro - 1 or wasteful
                with contextlib.nullcontext() if synchronised else model.no_sync():
                    (call or model)(inputs(world, 10 * step + part)).square().mean().backward()
            if spoil is not None:
                spoil(step)
            optimizer.step()
    except GuardError as error:
        caught = error
    guard.close()
    assert caught is None or set(caught.findings) <= set(guard.findings)
    raised = str(caught or "")
    hooks = num_hooks(model) - before
    return {"raised": raised, "found": guard.findings, "checked": guard.num_checked, "hooks": hooks}


CASES = {}


def case(fn):
    """A case of the one call on the ranks."""
    CASES[fn.__name__] = fn
    return fn


@case
def good_plain(world):
    return train(world, DistributedDataParallel(net(world.rank)))


@case
def good_frozen_accumulated_zero(world):
    """Frozen parameters, accumulation with no_sync, ZeRO, clipping."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    model.module[0].weight.requires_grad_(False)
    optimizer = ZeroRedundancyOptimizer(
        [p for p in model.parameters() if p.requires_grad], optimizer_class=torch.optim.AdamW, lr=0.1
    )
    wrapped = DistributedDataParallel(model.module)
    return train(
        world,
        wrapped,
        optimizer=optimizer,
        micro=3,
        spoil=lambda _: nn.utils.clip_grad_norm_(wrapped.parameters(), 0.1),
    )


@case
def good_exact_step(world):
    from rankwise import Order
    from rankwise.testing import ArrayLoader

    model = prepare(net(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = Order(12, batch_size=4)
    arrays = {"x": torch.randn(12, 4, generator=torch.Generator().manual_seed(1)).numpy()}
    loader = ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)
    guard = guarded(model, optimizer=optimizer, loader=loader, world=world, every=1)
    step = ExactStep(model, optimizer, lambda model, batch: model(batch["x"]).square().mean(1), world=world)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batches in loader:
            loader.mark_done(step(batches).resume)
    guard.close()
    return {"raised": "", "found": guard.findings, "checked": guard.num_checked, "hooks": 0}


@case
def good_sharded(world):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    fully_shard(model)
    return train(world, model)


@case
def sharded_not_finite(world):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    fully_shard(model)
    return train(world, model, call=lambda x: model(x) * (float("nan") if world.rank else 1.0))


@case
def good_ignored(world):
    """A parameter that the wrapper was told to leave alone is each rank's own."""
    model = net()
    model.register_parameter("own", nn.Parameter(torch.full((2,), float(world.rank))))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["own"])
    model = DistributedDataParallel(model)
    return train(world, model, call=lambda x: model(x) * model.module.own.exp())


@case
def good_closure(world):
    """As Lightning calls an optimizer: forward and backward run inside its step."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = guarded(model, optimizer=optimizer, world=world)

    def closure():
        optimizer.zero_grad()
        loss = model(inputs(world, guard.num_steps)).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    guard.close()
    return {"raised": "", "found": guard.findings, "checked": guard.num_checked, "hooks": 0}


@case
def cast_after_the_wrap(world):
    model = DistributedDataParallel(net())
    model.double()
    return train(world, model, call=lambda x: model(x.double()))


@case
def cast_under_the_guard(world):
    model = DistributedDataParallel(net())
    return train(
        world,
        model,
        call=lambda x: model(x.to(model.module[0].weight.dtype)),
        spoil=lambda step: step or model.double(),
    )


@case
def past_the_wrapper(world):
    model = DistributedDataParallel(net())
    return train(world, model, call=model.module)


@case
def late_layer(world):
    model = DistributedDataParallel(net())
    torch.manual_seed(0)
    model.module.append(nn.Linear(2, 2))
    return train(world, model)


@case
def late_unfrozen(world):
    model = net()
    model[0].requires_grad_(False)
    model = DistributedDataParallel(model)
    late = iter([False, True, True, True])
    return train(world, model, call=lambda x: (model.module[0].requires_grad_(next(late)), model(x))[1])


@case
def never_synchronised(world):
    model = DistributedDataParallel(net())

    def silent(x):
        with model.no_sync():
            return model(x)

    return train(world, model, call=silent)


@case
def not_wrapped(world):
    return train(world, net())


@case
def edited_after_the_wrap(world):
    model = DistributedDataParallel(net())
    model.module[0].bias.requires_grad_(False)
    model = DistributedDataParallel(model.module)

    def edit(step):
        if step == 1 and world.rank == 1:
            model.module[0].bias.data.add_(1e-6)

    return train(world, model, spoil=edit)


@case
def buffers_apart(world):
    return train(world, DistributedDataParallel(net(), broadcast_buffers=False))


@case
def accumulated_without_no_sync(world):
    return train(world, DistributedDataParallel(net()), micro=3, wasteful=True)


@case
def unused_parameters(world):
    return train(world, DistributedDataParallel(Partly()))


@case
def unused_parameters_as_expected(world):
    return train(world, DistributedDataParallel(Partly(), find_unused_parameters=True), steps=8)


@case
def needless_search(world):
    return train(world, DistributedDataParallel(net(), find_unused_parameters=True), steps=8)


@case
def other_signature(world):
    """Before the wrap: torch would leave one rank waiting."""
    model = nn.Sequential(nn.Linear(4, 8 + world.rank), nn.Linear(8 + world.rank, 2))
    with pytest.raises(GuardError) as said:
        prepare(model, world)
    return {"raised": str(said.value), "found": list(said.value.findings), "checked": 0, "hooks": 0}


@case
def only_logged(world):
    model = DistributedDataParallel(net())
    return train(world, model, call=model.module, on_finding="warn")


def all_cases(world):
    return {name: fn(world) for name, fn in CASES.items()}


@pytest.fixture(scope="module")
def told():
    return run_ranks(all_cases, 2)


def test_ranks_say_the_same_and_leave_no_hooks(told):
    """What is found is equal on all ranks, and nothing stays at the model."""
    for name in CASES:
        first, second = (of_rank[name] for of_rank in told)
        assert (first["found"], first["raised"]) == (second["found"], second["raised"]), name
        assert first["hooks"] == 0, name


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("good")])
def test_no_false_alarm(told, name):
    """Sound loops are checked four times or more and hear nothing."""
    for of_rank in told:
        assert of_rank[name]["checked"] >= 4
        assert of_rank[name]["found"] == []


def test_shards_are_looked_at(told):
    """Of a gradient that `fully_shard` has cut each rank looks at its own part."""
    assert "[finite] after step 1" in told[0]["sharded_not_finite"]["raised"]


SILENT = {
    "cast_after_the_wrap": ("moved or cast after wrapping", 6, 1),
    "cast_under_the_guard": ("moved or cast after wrapping (0.weight", 6, 2),
    "past_the_wrapper": ("the forward bypassed the wrapper", 6, 1),
    "late_layer": ("4.weight, 4.bias were added after wrapping", 2, 1),
    "late_unfrozen": ("0.weight, 0.bias were unfrozen after wrapping", 2, 2),
    "never_synchronised": ("ran inside no_sync()", 6, 1),
    "not_wrapped": ("no DistributedDataParallel", 6, 1),
}


@pytest.mark.parametrize("name", SILENT)
def test_gradients_that_are_not_added_up(told, name):
    """The flagship: at the first step after it happened, with parameters and cause."""
    cause, count, step = SILENT[name]
    (finding,) = told[0][name]["found"]
    assert (finding.check, finding.ranks, finding.step, finding.certain) == ("gradients", (0, 1), step, True)
    assert cause in finding.came
    assert f"differ in {count} of " in finding.came
    assert finding.mend in told[0][name]["raised"]


def test_a_parameter_that_one_rank_changed(told):
    """A frozen one, by 1e-6 in the second step; DistributedDataParallel never sends it again."""
    (finding,) = told[0]["edited_after_the_wrap"]["found"]
    assert (finding.check, finding.where, finding.step) == ("parameters", "0.bias", 2)
    assert "0.bias" in told[1]["edited_after_the_wrap"]["raised"]


SUSPICIONS = {
    "buffers_apart": ("parameters", "2.running_mean", "differ"),
    "accumulated_without_no_sync": ("reductions", "micro-batches", "3 of them"),
    "needless_search": ("unused", "find_unused_parameters=True", "every parameter had a gradient"),
}


@pytest.mark.parametrize("name", SUSPICIONS)
def test_suspicions_are_not_raised(told, name):
    """What may be meant so is found once, and the loop goes on."""
    check, where, came = SUSPICIONS[name]
    (finding,) = told[0][name]["found"]
    assert finding.check == check
    assert where in finding.where
    assert came in finding.came
    assert not finding.certain
    assert told[0][name]["raised"] == ""


def test_unused_parameters_by_name(told):
    """Before torch's own error, which has indices; not where they are expected."""
    assert "idle.weight, idle.bias" in told[0]["unused_parameters"]["raised"]
    assert told[0]["unused_parameters_as_expected"]["found"] == []


def test_other_shapes_before_the_wrap(told):
    """`prepare` names the parameter and both shapes on every rank, at once."""
    for of_rank in told:
        assert (
            "0.weight: rank 0 has trainable [8, 4] float32; rank 1 has trainable [9, 4]"
            in (of_rank["other_signature"]["raised"])
        )


def test_warnings_only(told):
    """on_finding="warn": the same is found, and said once, and nothing is raised."""
    result = told[0]["only_logged"]
    assert result["raised"] == ""
    assert [finding.check for finding in result["found"]].count("gradients") == 1


def odd_one_out(world):
    model = DistributedDataParallel(net())

    def edit(step):
        if step == 1 and world.rank == 1:
            model.module[3].bias.data.add_(1e-6)

    told = train(world, model, spoil=edit)
    some = world.subgroup([0, 2])
    if some is not None:
        sound = DistributedDataParallel(net(), process_group=some.channel.group)
        assert train(some, sound)["found"] == []
        assert train(some, sound, call=sound.module)["found"][0].check == "gradients"
    model = net() if world.rank != 2 else net()[:3]
    with pytest.raises(GuardError) as said:
        prepare(model, world)
    return told["found"], said.value.findings


def test_the_odd_one_out_is_named():
    """With three ranks a majority decides who is wrong."""
    for parameters, signature in run_ranks(odd_one_out, 3):
        assert [(f.check, f.ranks, f.where) for f in parameters] == [("parameters", (1,), "3.bias")]
        assert [(f.check, f.ranks, f.where) for f in signature] == [("signature", (2,), "3.weight, 3.bias")]
