"""Promise 3 with batch statistics: N ranks take them over all their samples, as one rank with the whole batch does."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import ConfigError, StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import ExactStep, prepare, prepare_optimizer
from rankwise.world import World

NUM_SAMPLES = 23


class Net(nn.Module):
    """A 2d norm, a 1d norm of a plain mean over time, and one without parameters; values far from zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.plain = nn.BatchNorm1d(4, affine=False)
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        return self.head(self.plain(torch.tanh(self.norm(self.body(x + 10).mean((2, 3))))))


def per_sample(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def weighted(model, batch):
    return (per_sample(model, batch) * batch["w"]).sum(), batch["w"].sum()


def trained(world, form, batch_size, strategy="ddp", wish=True):
    """State after an epoch, that of the wrapped module's names."""
    rng = np.random.default_rng(1)
    arrays = {
        "x": rng.normal(size=(NUM_SAMPLES, 2, 4, 4)),
        "y": rng.integers(0, 3, NUM_SAMPLES),
        "w": rng.uniform(0.1, 2.0, NUM_SAMPLES),
    }
    order = Order(NUM_SAMPLES, batch_size=batch_size, seed=3, remainder="drop")
    loader = ArrayLoader(arrays, order, seed=3, rank=world.rank, world_size=world.world_size)
    net = Net()
    if wish == "converted":  # by torch, whose layers do not work on a CPU
        net, wish = nn.SyncBatchNorm.convert_sync_batchnorm(net), False
    model = prepare(net, world, strategy=strategy, sync_batchnorm=wish)
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    step = ExactStep(model, optimizer, form, world=world, max_grad_norm=10.0)
    for batches in loader:
        step(batches)
    state = getattr(model, "module", model).state_dict()
    return {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in state.items()}


@pytest.mark.parametrize("form", [per_sample, weighted], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("num_ranks", "batch_size"), [(2, 6), (3, 7), (3, 2)])
def test_ranks_normalise_as_one(num_ranks, batch_size, form):
    """Parameters and running statistics within 1e-12 of one rank's; 2 samples on 3 ranks leave one empty each step."""
    wanted = trained(World.single(), form, batch_size)
    apart = trained(World.single(), form, batch_size, wish=False)
    found = run_ranks(trained, num_ranks, form, batch_size)
    for state in found:
        assert list(state) == list(wanted) == list(Net().state_dict())
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)
            assert torch.equal(state[name], found[0][name])
            assert torch.equal(apart[name], value)  # on one rank nothing is replaced


@pytest.mark.parametrize(("strategy", "wish"), [("zero1", "auto"), ("fsdp", "auto"), ("ddp", "converted")])
def test_every_strategy_has_them(strategy, wish):
    """Also where parameters or their optimizer's state are sharded, and for torch's SyncBatchNorm on a CPU."""
    wanted = trained(World.single(), weighted, 7)
    for state in run_ranks(trained, 3, weighted, 7, strategy, wish):
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)


def told(world):
    """What is said of wishes and batches that cannot be, and what becomes of copies."""
    said = []
    for model, wish in ((nn.Linear(2, 2), True), (Net(), "always"), (nn.LazyBatchNorm1d(), True)):
        try:
            prepare(model, world, sync_batchnorm=wish)
        except ConfigError as error:
            said.append(str(error))
    model = prepare(nn.BatchNorm1d(4).double(), world, sync_batchnorm=True).module
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    x = torch.randn(5, 4, dtype=torch.float64) + world.rank
    model.train()
    model(x)
    same = torch.equal(copies[0](x), model(x))
    norm = nn.BatchNorm1d(3)
    twice = prepare(nn.ModuleList([nn.Sequential(nn.Linear(3, 3), norm), norm]), world, sync_batchnorm="auto").module
    assert twice[0][1] is twice[1] is not norm  # a layer in two places is still one
    try:
        trained(world, per_sample, 1)
    except StepError as error:
        said.append(str(error))
    return said, same, [type(c).__name__ for c in copies]


def test_what_cannot_be_is_said():
    """Wishes without layers, a global batch of one value; a model can be copied and pickled all the same."""
    for said, same, copies in run_ranks(told, 2):
        assert same
        assert len(copies) == 2
        assert [text.partition(":")[0].partition(",")[0] for text in said] == [
            "sync_batchnorm=True",
            "sync_batchnorm must be True",
            "the module '' has no parameters yet",
            "one value per channel over all ranks has no variance",
        ]
