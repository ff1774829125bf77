"""Own loops on several ranks: randomness of their own, unused parameters, compiled models."""

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.checkpoint import Replicated
from rankwise.errors import StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import ExactStep, prepare, unwrapped
from rankwise.world import World

NUM_SAMPLES = 9


def make_loader(world, batch_size=2):
    rng = np.random.default_rng(2)
    order = Order(NUM_SAMPLES, batch_size=batch_size)
    arrays = {"x": rng.normal(size=(NUM_SAMPLES, 4)), "part": np.arange(NUM_SAMPLES) % 3}
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


class Parts(nn.Module):
    """Three parts, each used by the samples that name it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 3).double()
        self.parts = nn.ModuleList(nn.Linear(3, 1).double() for _ in range(3))

    def forward(self, x, part):
        hidden = self.body(x)
        values = [self.parts[int(p)](row) for row, p in zip(hidden, part, strict=True)]
        return torch.stack(values)[:, 0]


def squares(model, batch):
    return model(batch["x"], batch["part"]) ** 2


def train_parts(world, batch_size):
    """Train with momentum and decay, which move whatever has a gradient, a zero included."""
    model = prepare(Parts(), world, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.3)
    step = ExactStep(model, optimizer, squares, world=world)
    for epoch in range(2):
        loader = make_loader(world, batch_size)
        loader.set_epoch(epoch)
        for batches in loader:
            step(batches)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("num_ranks", "batch_size"), [(2, 1), (2, 2), (3, 2)])
def test_parts_that_nobody_used_stand_still(num_ranks, batch_size):
    """A rank without samples runs a stand-in, whose parts get no gradient by it: the parameters of one rank."""
    wanted = train_parts(World.single(), batch_size)
    for found in run_ranks(train_parts, num_ranks, batch_size):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


class Marked(nn.Module):
    """A layer whose output meets that of a sparse embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.marks, self.head = nn.Linear(4, 3), nn.Embedding(3, 3, sparse=True), nn.Linear(3, 1)
        self.double()

    def forward(self, x, part):
        return self.head(torch.tanh(self.body(x) + self.marks(part)))[:, 0]


def sparse_gradients(world):
    """Clipped, from the second step on; the norms are those of dense gradients."""
    model = prepare(Marked(), world)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), squares, world=world)
    found = []
    for batches in make_loader(world, 4):
        report = step(batches)
        if report.grad_norm is not None:
            norm = torch.nn.utils.get_total_norm([p.grad.to_dense() for p in model.parameters()]).item()
            assert report.grad_norm > 0.1 > norm > 0.0999
        step._max_grad_norm = 0.1
        found += [p.grad.to_dense().flatten() for p in model.parameters()]
    return torch.cat(found)


def test_sparse_gradients_leave_dense_ones_alone():
    """The gradient behind a sparse embedding lies in the memory of its own: averaging one must not move the other."""
    wanted = sparse_gradients(World.single())
    for found in run_ranks(sparse_gradients, 2):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def unused(world, late):
    """What is said of a part that the loss never depends on, or no longer."""
    steps = []

    def step_fn(model, batch):
        steps.append(1)
        return model(batch["x"], batch["part"]) ** 2

    class Both(Parts):
        def forward(self, x, part):
            hidden = self.body(x)
            every = late and len(steps) < 3  # the warm-up and the first step
            return (sum(p(hidden) for p in self.parts) if every else self.parts[0](hidden))[:, 0]

    model = prepare(Both(), world)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, world=world)
    try:
        for batches in make_loader(world, 4):
            step(batches)
    except StepError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("late", [False, True])
def test_unused_parameters_are_named(late):
    """By name on every rank, before the first step or when torch notices, with where the option goes."""
    for said in run_ranks(unused, 2, late):
        assert "parts.1.weight, parts.1.bias, parts.2.weight, parts.2.bias." in said
        assert 'Trainer(ddp={"find_unused_parameters": True})' in said
        assert "prepare(model, world, find_unused=True)" in said
        assert ("in the last step" if late else "in the first pass of rank 0, 1") in said


def masks(world):
    """What dropout draws before and after the model is prepared, and the weights of it and of a second one."""
    torch.manual_seed(4)
    before = torch.rand(3).tolist()
    model = prepare(nn.Linear(2, 2), world)
    dropped = nn.functional.dropout(torch.ones(64)).tolist()
    later = prepare(nn.Linear(2, 2), world)
    return before, dropped, unwrapped(model).weight.tolist(), unwrapped(later).weight.tolist()


def test_ranks_draw_apart_once_their_weights_are_equal():
    """Dropout masks differ; a model built later begins as on one rank, too; the same command draws the same."""
    first, second, third = run_ranks(masks, 3)
    assert first[0] == second[0] == third[0]
    assert first[2:] == second[2:] == third[2:]
    assert first[1] != second[1] != third[1] != first[1]
    assert [r[1] for r in run_ranks(masks, 3)] == [first[1], second[1], third[1]]
    assert first == masks(World.single())


@pytest.mark.parametrize("how", ["whole", "part"])
def test_compiled_models_save_the_plain_names(how):
    """The state of a compiled model, or of one with compiled parts, fits the plain one and the other way round."""

    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    compiled, plain = make(0), make(1)
    if how == "whole":
        compiled = torch.compile(compiled, backend="eager")
    else:
        compiled[1] = torch.compile(compiled[1], backend="eager")
    state = Replicated(compiled).state_dict()
    assert list(state) == list(plain.state_dict())
    Replicated(plain).load_state_dict(state)
    assert torch.equal(plain[0].weight, state["0.weight"])
    other = make(2)
    Replicated(compiled).load_state_dict(other.state_dict())
    assert torch.equal(Replicated(compiled).state_dict()["1.weight"], other[1].weight)
    Replicated(plain).load_state_dict({f"_orig_mod.{name}": value for name, value in other.state_dict().items()})
    assert torch.equal(plain[1].weight, other[1].weight)
