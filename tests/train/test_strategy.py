"""What `prepare` refuses and decides for each strategy, and compiled models of each."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import ConfigError, RankwiseError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import Evidence, ExactStep, Trainer, is_sharded, prepare, prepare_optimizer, shards_state
from rankwise.train.strategy import decide
from rankwise.world import World

MIB = 2**20


class Branches(nn.Module):
    """Two branches; a sample goes through one of them."""

    def __init__(self, norm=False):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.branches = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
        self.double()

    def forward(self, x, branch=None):
        if branch is None:
            return self.branches[1](self.body(x).tanh() + self.branches[0](self.body(x)))[:, 0]
        hidden = self.norm(self.body(x)).tanh()
        values = [self.branches[int(b)](row) for row, b in zip(hidden, branch, strict=True)]
        return torch.stack(values)[:, 0]


def squares(model, batch):
    return model(batch["x"], batch["branch"]) ** 2


def both_branches(model, batch):
    return model(batch["x"]) ** 2


def make_loader(world, branch=(0, 1)):
    x = np.random.default_rng(2).normal(size=(10, 4))
    arrays = {"x": x, "branch": np.resize(branch, 10)}
    order = Order(10, batch_size=4, seed=3, kind="sequential")
    return ArrayLoader(arrays, order, seed=3, rank=world.rank, world_size=world.world_size)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained(world, model, optimizer, branch=(0, 1), step_fn=squares):
    step = ExactStep(model, optimizer, step_fn, world=world)
    for batches in make_loader(world, branch):
        step(batches)
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])


def said_of(make):
    try:
        make()
    except RankwiseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(world):
    """What is said of models and optimizers that a sharded step cannot be exact with."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def fsdp(model=None, **options):
        return prepare(model or Branches(), world, strategy="fsdp", **options)

    def stepped():
        model = Branches()
        optimizer = torch.optim.AdamW(model.parameters())
        sum(p.sum() for p in model.parameters()).backward()
        optimizer.step()
        return prepare_optimizer(optimizer, fsdp(model))

    def other_mesh():
        model = Branches()
        fully_shard(model, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "shards")))
        return ExactStep(model, sgd(model), squares, world=world)

    def by_units():
        model = Branches()
        model = fsdp(model, units=list(model.branches))
        return trained(world, model, sgd(model), branch=(0, 0, 1, 1))

    def unused():
        model = fsdp()
        return trained(world, model, sgd(model), branch=(0, 0, 1, 1))

    def mixed(strategy):
        model = Branches()
        model.body.float()
        return prepare_optimizer(sgd(model), prepare(model, world, strategy=strategy))

    def channels_last():
        return fsdp(torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))

    return {
        "strides": said_of(channels_last),
        "zero1 mixed": said_of(lambda: mixed("zero1")),
        "fsdp mixed": said_of(lambda: mixed("fsdp")),
        "ddp mixed": said_of(lambda: mixed("ddp")),
        "state": said_of(stepped),
        "strange": said_of(lambda: prepare_optimizer(sgd(Branches()), fsdp())),
        "mesh": said_of(other_mesh),
        "norm": said_of(lambda: ExactStep(m := fsdp(Branches(norm=True)), sgd(m), squares, world=world)),
        "units": said_of(by_units),
        "unused": said_of(unused),
        "dead": said_of(lambda: (s := sgd(m := Branches()), ExactStep(fsdp(m), s, squares, world=world))),
    }


def test_what_a_sharded_step_cannot_be_exact_with_is_refused():
    """On every rank and before the first step, with the mend."""
    wanted = {
        "strides": "these are not: weight: call model.to(memory_format=torch.contiguous_format) before",
        "zero1 mixed": "strategy='zero1' shards parameters of one dtype together, but these have torch.float32, torch",
        "fsdp mixed": "strategy='fsdp' shards parameters of one dtype together, but these have torch.float32, torch",
        "ddp mixed": "nothing",
        "state": "AdamW has already taken steps, and strategy='fsdp' shards its state",
        "strange": "holds a tensor of shape [6, 4] that was not a parameter of the model",
        "mesh": "sharded over a mesh of shape (1, 2), but this world has 2 ranks",
        "norm": "norm of the model tracks batch statistics",
        "units": "branches.0, branches.0; rank 1: the model, branches.1, branches.1)",
        "unused": "branches.1.weight, branches.1.bias, branches.0.weight, branches.0.bias",
        "dead": "holds the parameters that the model had before strategy='fsdp' replaced them by shards",
    }
    for found in run_ranks(refused, 2, timeout=300):
        for name, text in wanted.items():
            assert text in found[name], (name, found[name])


def compiled(world):
    """Parameters after training compiled models of each strategy."""
    found = {}
    for strategy in ("ddp", "zero1", "fsdp"):
        model = Branches()
        optimizer = sgd(model)
        options = {"units": [model.body]} if strategy == "fsdp" else {}
        model = prepare(model, world, strategy=strategy, compile={"backend": "aot_eager"}, **options)
        optimizer = prepare_optimizer(optimizer, model)
        found[strategy] = (
            trained(world, model, optimizer, step_fn=both_branches),
            is_sharded(model),
            shards_state(optimizer),
        )
    return found


def test_compiled_models_train_the_same():
    """torch.compile around replicas, and inside the units of shards: the parameters of one plain process."""
    wanted = trained(World.single(), model := Branches(), sgd(model), step_fn=both_branches)
    for found in run_ranks(compiled, 2, timeout=500):
        for strategy, (parameters, *sharded) in found.items():
            torch.testing.assert_close(parameters, wanted, rtol=0, atol=1e-12)
            assert sharded == [strategy == "fsdp", strategy != "ddp"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": "zero3"}, "strategy must be 'ddp', 'zero1', 'fsdp' or 'auto', got 'zero3'"),
        ({"comm_hook": "int8"}, "comm_hook must be 'fp16', 'bf16', 'powersgd' or a hook"),
        ({"comm_hook": "powersgd", "strategy": "fsdp"}, "comm_hook must be 'fp16' or 'bf16' there"),
        ({"static_graph": True, "strategy": "fsdp"}, "fully_shard has no option static_graph"),
        ({"find_unused": True, "find_unused_parameters": True}, "find_unused_parameters .* under two names"),
        ({"units": []}, "units= are only valid with strategy='fsdp', which gathers them one at a time; this is 'ddp'"),
        ({"mesh": None, "strategy": "fsdp"}, "prepare decides mesh"),
    ],
)
def test_options_of_another_strategy_are_refused(options, said):
    """At one rank already, where they would do nothing: the script is meant for more."""
    with pytest.raises(ConfigError, match=said):
        prepare(Branches(), World.single(), **options)


class Layers(nn.Module):
    """Four layers of 1 MiB."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(4))


def decisions(world):
    """Strategies that are decided, by the memory of the smaller device and what else is known."""
    adam = torch.optim.Adam(Layers().parameters())

    def by_memory(mib, optimizer=adam, model=None):
        evidence = Evidence(optimizer=optimizer, memory_bytes=(mib if world.rank else 10 * mib) * MIB)
        return decide(model or Layers(), world, evidence)

    found = {mib: by_memory(mib) for mib in (100, 33, 24, 4)}
    found["sgd"] = by_memory(33, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    found["unknown"] = by_memory(33, torch.optim.LBFGS)
    found["norm"] = decide(Branches(norm=True), world, Evidence(memory_bytes=1, batch_per_rank=2 + world.rank))
    held = next(iter(make_loader(world, (world.rank,))))[0]
    seen = Evidence(first_pass=lambda model: squares(model, held).sum())
    found["unused"] = decide(Branches(), world, seen)
    return found


def test_auto_decides_from_evidence():
    """The same on all ranks: the first strategy that fits into half of the smallest device, and no fsdp with norms."""
    first, second = run_ranks(decisions, 2, timeout=300)
    assert first == second
    # parameters 4 MiB, gradients twice, two moments; zero1 holds half of those, fsdp half of all and a layer twice
    assert first[100].bytes_per_rank == {"ddp": 20 * MIB, "zero1": 16 * MIB, "fsdp": 10 * MIB}
    assert [first[mib].strategy for mib in (100, 33, 24, 4)] == ["ddp", "zero1", "fsdp", "fsdp"]
    assert "no allowed strategy fits" in first[4].reasons[0]
    assert first["sgd"].strategy == "ddp"
    assert first["sgd"].bytes_per_rank["ddp"] == 12 * MIB
    assert "two moments each" in first["unknown"].reasons[0]
    norm = first["norm"]
    assert (norm.strategy, norm.few_samples, norm.find_unused) == ("zero1", True, False)
    assert any("of 2 samples" in reason for reason in norm.reasons)
    assert first["unused"].find_unused
    assert "branches.1.weight, branches.1.bias, branches.0.weight" in first["unused"].reasons[-1]


class Lines(logging.Handler):
    """Keeps what is said."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def with_auto(world):
    """A trainer that decides by its first batches, of which each rank uses another branch; and what it says of it."""
    model = Branches()
    lines = Lines()
    logging.getLogger("rankwise.train").addHandler(lines)
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        squares,
        world=world,
        run=False,
        strategy="auto",
        progress=False,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
    )
    trainer.fit(make_loader(world, (0, 0, 1, 1)), epochs=2)
    logging.getLogger("rankwise.train").removeHandler(lines)
    said = [line for line in lines.said if "strategy='auto' chooses" in line]
    return torch.cat([p.detach().flatten() for p in model.parameters()]), said


def test_a_trainer_decides_by_its_first_batches():
    """It finds that parameters are unused, allows it, says so once on the main rank, and trains as one rank does."""
    wanted, _ = with_auto(World.single())
    (main, said), (other, nothing) = run_ranks(with_auto, 2, timeout=300)
    for found in (main, other):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert nothing == []
    (line,) = said
    assert line.startswith("strategy='auto' chooses ddp: ")
    assert "find_unused=True" in line
