"""Under each strategy: steps without any weight, odd optimizers, and buffers that a pass replaces."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.checkpoint import Checkpointer, ModelState, OptimizerState
from rankwise.errors import CheckpointError, StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import ExactStep, evaluate, prepare, prepare_optimizer
from rankwise.world import World

MASKED = (1, 3)  # steps of which nothing counts


def make(world, strategy, kind):
    """A step whose mask hides whole steps, its model and optimizer, and the batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    model = prepare(model, world, strategy=strategy)
    optimizer = prepare_optimizer(kind(model.parameters(), lr=0.05), model)

    def total(model, batch):
        counts = batch.share.step.index not in MASKED
        return (model(batch["x"]) ** 2).mean(1).sum() * counts, len(batch.ids) * counts

    arrays, order = {"x": np.random.default_rng(0).normal(size=(48, 6))}, Order(48, batch_size=10, seed=1)
    loader = ArrayLoader(arrays, order, seed=1, rank=world.rank, world_size=world.world_size)
    return ExactStep(model, optimizer, total, world=world), model, optimizer, list(loader)


def whole(model):
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])


def masked(world):
    found = {}
    for strategy in ("ddp", "zero1", "fsdp"):
        step, model, _, batches = make(world, strategy, torch.optim.AdamW)
        weights, moved = [], []
        for each in batches:
            before = whole(model).clone()
            weights.append(step(each).weight)
            moved.append(not torch.equal(before, whole(model)))
        found[strategy] = weights, moved, whole(model)
    return found


def test_a_step_without_weight_changes_nothing():
    """Where the weights of a step sum to zero it is skipped, without a NaN, as if it had not been."""
    for found in run_ranks(masked, 2):
        for weights, moved, after in found.values():
            assert weights == [10, 0, 10, 0, 8]
            assert moved == [True, False, True, False, True]
            torch.testing.assert_close(after, found["ddp"][2], rtol=1e-12, atol=0)


def overflowing(world):
    """Train over 21 samples: the last step has one. The stand-in of the other rank overflows."""
    found = {}
    for strategy in ("ddp", "zero1"):
        torch.manual_seed(0)
        model = prepare(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double(), world, strategy=strategy)
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
        now = []

        def losses(model, batch, now=now):
            found = (model(batch["x"]) ** 2).mean(1)
            return found if batch.share.step.index == now[-1] else found * torch.inf

        arrays, order = {"x": np.random.default_rng(0).normal(size=(21, 6))}, Order(21, batch_size=10, seed=1)
        loader = ArrayLoader(arrays, order, seed=1, rank=world.rank, world_size=world.world_size)
        step = ExactStep(model, optimizer, losses, world=world)
        for each in loader:
            now.append(each[0].share.step.index)
            step(each)
        found[strategy] = whole(model)
    return found


def test_an_overflow_of_a_stand_in_leaves_no_trace():
    """A rank without samples computes on those that it had; infinity there is not NaN in the gradient of the others."""
    alone = overflowing(World.single())["ddp"]
    for found in run_ranks(overflowing, 2):
        for strategy, after in found.items():
            torch.testing.assert_close(after, alone, rtol=1e-12, atol=1e-12, msg=strategy)


def frozen_later(world):
    """What is said, and whether the frozen weights stay, if a layer is frozen after the second or before any step."""
    found = {}
    for find_unused, first in ((False, 2), (True, 2), (False, 0)):
        torch.manual_seed(0)
        model = prepare(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)).double(), world, find_unused=find_unused)
        step = ExactStep(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b["x"]).mean(1), world=world)
        arrays, order = {"x": np.random.default_rng(0).normal(size=(48, 6))}, Order(48, batch_size=10, seed=1)
        loader = ArrayLoader(arrays, order, seed=1, rank=world.rank, world_size=world.world_size)
        said, weights = "", []
        try:
            for number, each in enumerate(loader):
                model.module[0].requires_grad_(number < first)
                step(each)
                weights.append(model.module[0].weight.detach().clone())
        except StepError as error:
            said = str(error)
        found[find_unused, first] = said, [not torch.equal(a, b) for a, b in pairwise(weights)]
    return found


def test_layers_that_are_frozen_in_mid_run_are_named():
    """Torch counts the parameters that were trainable when it wrapped the model, not those of now."""
    for found in run_ranks(frozen_later, 2):
        for first in (2, 0):
            said, _ = found[False, first]
            assert said.startswith("0.weight, 0.bias became frozen after the model was prepared")
        assert found[True, 2] == ("", [True, False, False, False])


def factored(world, folder):
    """Adafactor, saved after one step under ddp and zero1, and gone on with under either; and what fsdp says."""
    ends = {}
    for old in ("ddp", "zero1"):
        step, model, optimizer, batches = make(world, old, torch.optim.Adafactor)
        step(batches[0])
        parts = {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model)}
        Checkpointer(f"{folder}/{old}", world=world).save(1, parts)
        step(batches[2])
        ends[old] = whole(model)
        for new in ("ddp", "zero1", "fsdp"):
            step, model, optimizer, batches = make(world, new, torch.optim.Adafactor)
            parts = {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model)}
            try:
                Checkpointer(f"{folder}/{old}", world=world).restore(parts)
            except CheckpointError as error:
                ends[old, new] = str(error)
                continue
            step(batches[2])
            ends[old, new] = whole(model)
    return ends


def test_state_of_another_shape_is_restored_or_refused_by_name(tmp_path):
    """Rows and columns of Adafactor go from ddp to zero1 and back, to the bit; fsdp cannot cut them, and says which."""
    for ends in run_ranks(factored, 2, str(tmp_path)):
        for old in ("ddp", "zero1"):
            for new in ("ddp", "zero1"):
                assert torch.equal(ends[old, new], ends["ddp"])
            assert "state 'row_var' of 0.weight has the shape [8, 1], the parameter [8, 6]" in ends[old, "fsdp"]
            assert "strategy='ddp' or 'zero1'" in ends[old, "fsdp"]


def test_an_error_of_the_step_function_says_where_it_came():
    """Its note names step, epoch, rank and samples: the line alone does not tell which batch to look at."""
    _, model, optimizer, batches = make(World.single(), "ddp", torch.optim.SGD)

    def fails(model, batch):
        if batch.share.step.index == 2:
            raise ValueError("as a user's code does")
        return model(batch["x"]).mean(1)

    step = ExactStep(model, optimizer, fails, world=World.single())
    step(batches[0])
    with pytest.raises(ValueError, match="as a user's code does") as caught:
        step(batches[2])
    samples = ", ".join(map(str, batches[2][0].ids.tolist()))
    assert caught.value.__notes__ == [f"in step 2 of epoch 0 on rank 0, with the samples {samples}"]


def test_an_error_before_the_first_step_says_that_it_was_there():
    """A model of another dtype than the batch fails there; torch's message names neither model nor field."""
    _, model, optimizer, batches = make(World.single(), "ddp", torch.optim.SGD)
    model.half()
    with pytest.raises(RuntimeError, match="must have the same dtype") as caught:
        ExactStep(model, optimizer, lambda model, batch: model(batch["x"]).mean(1), world=World.single())(batches[0])
    of_dtypes, of_place = caught.value.__notes__
    assert of_dtypes.startswith("the parameters of the model are float16, but the batch has ['x'] of float64: ")
    sample = batches[0][0].ids[0]
    assert of_place == f"in the pass of weight zero before the first step, on rank 0, with sample {sample}"


def test_an_error_of_the_evaluation_says_where_it_came():
    """Its note names rank and samples."""
    _, model, _, _ = make(World.single(), "ddp", torch.optim.SGD)

    def fails(model, batch):
        raise KeyError("labels")

    val = ArrayLoader({"x": np.ones((6, 6))}, Order(6, batch_size=4, kind="sequential", seed=0), seed=0)
    with pytest.raises(KeyError, match="labels") as caught:
        evaluate(model, val, fails, world=World.single())
    assert caught.value.__notes__ == ["in the evaluation on rank 0, with the samples 0, 1, 2, 3"]


class Counting(nn.Module):
    """Replaces its buffers in the forward pass, instead of writing into them; one of them does not exist at first."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("num_passes", torch.zeros(()))
        self.register_buffer("first", None)

    def forward(self, x):
        if self.training:
            self.num_passes = self.num_passes + 1
            self.first = self.num_passes if self.first is None else self.first
        return self.layer(x)


def counted(world):
    """Train over 21 samples: in the last step one rank has none."""
    model = prepare(Counting().double(), world)
    arrays, order = {"x": np.ones((21, 6))}, Order(21, batch_size=10, seed=1)
    loader = ArrayLoader(arrays, order, seed=1, rank=world.rank, world_size=world.world_size)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b["x"]).mean(1), world=world)
    for each in loader:
        step(each)
    inner = getattr(model, "module", model)
    return len(each[0].ids), float(inner.num_passes), float(inner.first)


def test_buffers_that_are_replaced_do_not_count_passes_of_weight_zero():
    """Neither the pass before the first step, which every restart repeats, nor that of a stand-in stays in them."""
    assert counted(World.single()) == (1, 3.0, 1.0)
    assert run_ranks(counted, 2) == [(0, 2.0, 1.0), (1, 3.0, 1.0)]


def made_with_state(world):
    """Train with Adagrad, whose state exists before the first step, under each strategy."""
    found = {}
    for strategy in ("ddp", "zero1", "fsdp"):
        step, model, _, batches = make(world, strategy, torch.optim.Adagrad)
        for each in batches:
            step(each)
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.05)  # of the plain model
        model2 = prepare(plain, world, strategy=strategy)
        step = ExactStep(
            model2, prepare_optimizer(optimizer, model2), lambda m, b: (m(b["x"]) ** 2).mean(1), world=world
        )
        for each in batches:
            step(each)
        found[strategy] = whole(model), whole(model2)
    return found


def test_an_optimizer_that_is_made_with_its_state_is_sharded():
    """It was refused, as one that has already taken steps."""
    alone = made_with_state(World.single())["ddp"]
    for found in run_ranks(made_with_state, 2):
        for strategy, ends in found.items():
            torch.testing.assert_close(ends, alone, rtol=1e-12, atol=1e-14, msg=strategy)
