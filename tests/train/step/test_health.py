"""A run stops at what is not finite, before it is published, and says where it came from."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.checkpoint import Checkpointer, Replicated
from rankwise.errors import StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import Hooks, Trainer
from rankwise.world import World

NUM_SAMPLES = 24


def make_loader(world):
    rng = np.random.default_rng(2)
    order = Order(NUM_SAMPLES, batch_size=4)
    arrays = {"x": rng.normal(size=(NUM_SAMPLES, 4))}
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


def make_trainer(world, run, step_fn, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, step_fn, world=world, run=run, progress=False, **options)


def poisoned(sample, how):
    """The step function that goes wrong at one sample."""

    def step(model, batch):
        losses = model(batch["x"])[:, 0] ** 2
        bad = torch.as_tensor(batch.ids == sample)
        if how == "loss":
            return losses * torch.where(bad, math.nan, 1.0)
        if how == "infinite":  # its gradient is finite
            return torch.where(bad, losses.detach() + math.inf, 0.0) + losses
        return losses + torch.where(bad, losses * 0, 0.0).sqrt() * 0 if bad.any() else losses  # finite, its slope not

    return step


def sample_of(step):
    """One of the samples of a step of the first epoch."""
    return int(list(make_loader(World.single()))[step][0].ids[0])


def stopped(world, run, sample, how, options):
    """Train until it stops; return what was said, which rank had the sample and where, and the checkpoints left."""
    place = []
    for step in range(6):
        batches = list(make_loader(world))[step]
        place += [(0, step, [int(i) for b in batches for i in b.ids])] if sample in batches[0].ids else []
    trainer = make_trainer(world, run, poisoned(sample, how), **options)
    with pytest.raises(StepError) as said:
        trainer.fit(make_loader(world), epochs=2)
    left = sorted(p.name for p in (Path(run) / "checkpoints").glob("step-*")) if run else []
    return str(said.value), place, left


@pytest.mark.parametrize("how", ["loss", "infinite", "gradient"])
def test_every_rank_names_rank_epoch_step_and_samples(how, tmp_path):
    """Saved at every step, logged at none, one checkpoint kept: the good one is there and nothing after it."""
    sample = sample_of(3)
    run = str(tmp_path / "run")
    results = run_ranks(stopped, 2, run, sample, how, {"save_every": 1, "log_every": 1000, "keep": 1})
    ((guilty, (_, step, ids)),) = [(rank, place[0]) for rank, (_, place, _) in enumerate(results) if place]
    for said, _, left in results:
        assert f"at epoch 0, step {step} of the epoch" in said
        assert f"rank {guilty} had the samples {', '.join(map(str, ids))}" in said
        assert (f"rank {1 - guilty} had" in said) == (how == "gradient")  # it is a sum: no rank is guilty alone
        assert left == ["step-0000000003"]
        assert f"{left[0]}, is older and intact" in said
    assert not (tmp_path / "run" / "finished.json").exists()
    model = nn.Linear(4, 1).double()
    Checkpointer(tmp_path / "run" / "checkpoints").restore({"model": Replicated(model)})
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_the_end_of_an_epoch_and_of_a_run_looks(how, tmp_path):
    """A run shorter than log_every does not end well with a loss of null, and its epoch is not published."""
    trainer = make_trainer(World.single(), tmp_path / "run", poisoned(3, how), log_every=1000)
    with pytest.raises(StepError, match=r"rank 0 had the samples .*No checkpoint has been written yet"):
        trainer.fit(make_loader(World.single()), epochs=1)
    assert list((tmp_path / "run").glob("checkpoints/step-*")) == []
    assert not (tmp_path / "run" / "finished.json").exists()
    limited = make_trainer(World.single(), False, poisoned(3, how), log_every=1000, limit_steps=6)
    with pytest.raises(StepError, match="run=False writes no checkpoint"):
        limited.fit(make_loader(World.single()), epochs=3)


def test_parameters_that_overflow_are_named(tmp_path):
    """The last step's loss and gradient are finite, its update is not: noticed before it is published."""
    hooks = Hooks(fit_start=lambda trainer: trainer.optimizer.param_groups[0].update(lr=math.inf))
    trainer = make_trainer(World.single(), tmp_path / "run", poisoned(-1, "loss"), hooks=hooks, limit_steps=1)
    with pytest.raises(StepError, match=r"parameter 'weight' is (inf|nan) after the update at epoch 0, step 0"):
        trainer.fit(make_loader(World.single()))
    assert list((tmp_path / "run").glob("checkpoints/step-*")) == []


def test_a_short_run_records_its_loss(tmp_path):
    """Shorter than log_every: the final values hold the loss of its steps."""
    make_trainer(World.single(), tmp_path / "run", poisoned(-1, "loss"), log_every=1000, limit_steps=2).fit(
        make_loader(World.single())
    )
    assert math.isfinite(json.loads((tmp_path / "run" / "finished.json").read_text())["values"]["loss"])


def test_clipping_says_the_samples_at_once(tmp_path):
    """With max_grad_norm= the norm is known in every step: it stops there, before the update."""
    options = {"max_grad_norm": 1.0, "log_every": 1000}
    for said, _, _ in run_ranks(stopped, 2, str(tmp_path / "run"), sample_of(2), "loss", options):
        assert "the loss is nan on rank" in said
        assert "This step changed nothing" in said


def calls_of_steps(world, run, save_every):
    """How many collectives of ours lie between the ends of steps, DDP's own not counted."""
    counted = []
    hooks = Hooks(step_end=lambda *_: counted.append(world.channel.calls))
    trainer = make_trainer(world, run, poisoned(-1, "loss"), hooks=hooks, log_every=2, save_every=save_every)
    trainer.fit(make_loader(world))
    return np.diff(counted).tolist()


def test_looking_costs_no_collective():
    """A step has none, a step that is logged the one that it had."""
    assert run_ranks(calls_of_steps, 2, False, None) == [[1, 0, 1, 0, 1]] * 2


def test_float16_weights_are_suspected_before_the_samples(tmp_path):
    """Adam divides by numbers that float16 rounds to zero; the samples of the next step are not to blame."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).half()
    trainer = Trainer(
        model,
        torch.optim.Adam(model.parameters(), lr=0.1),
        lambda model, batch: model(batch["x"].half())[:, 0] ** 2 * 1e-3,
        world=World.single(),
        run=tmp_path / "run",
        progress=False,
    )
    with pytest.raises(StepError, match=r"parameters are float16.*keep the model in float32.*else .*samples"):
        trainer.fit(make_loader(World.single()), epochs=2)
