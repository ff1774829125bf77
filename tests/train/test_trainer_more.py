"""The trainer's further arguments, and what it looks at before the first step."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.checkpoint import Replicated
from rankwise.errors import ConfigError, StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.tracking import read_metrics
from rankwise.train import Hooks, Predictions, Trainer, prepare
from rankwise.world import World


class StopError(Exception):
    """Stands for a crash."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


def make_loader(world=None, samples=26, micro_batch=None):
    world = world or World.single()
    rng = np.random.default_rng(2)
    arrays = {"x": rng.normal(size=(samples, 4)), "y": rng.integers(0, 2, size=samples)}
    order = Order(samples, batch_size=8)
    place = {"rank": world.rank, "world_size": world.world_size}
    return ArrayLoader(arrays, order, seed=order.seed, micro_batch=micro_batch, **place)


def step(model, batch):
    logits = model(batch["x"])
    losses = nn.functional.cross_entropy(logits, batch["y"], reduction="none")
    return losses, {"accuracy": logits.argmax(1) == batch["y"]}


def make_trainer(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return Trainer(model, optimizer, step, world=World.single(), progress=False, **{"run": "run", **options})


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class Averaged:
    """A moving average that a hook keeps, as an exponential moving average of weights would be."""

    def __init__(self):
        self.value = torch.zeros((), dtype=torch.float64)

    def update(self, trainer):
        self.value = 0.9 * self.value + 0.1 * parameters(trainer).sum()

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def averaged_until(num_steps, run):
    """Train with an average and notes of one's own; crash after so many steps."""
    average, notes = Averaged(), {"seen": 0}

    def after(trainer, _report):
        average.update(trainer)
        notes["seen"] += 1
        if trainer.session.progressed.num_steps == num_steps:
            raise StopError

    parts = {"ema": Replicated(average), "notes": notes}
    trainer = make_trainer(run=run, save_every=2, hooks=Hooks(step_end=after), parts=parts)
    if num_steps is None:
        trainer.fit(make_loader(), epochs=2)
    else:
        with pytest.raises(StopError):
            trainer.fit(make_loader(), epochs=2)
    return average.value, notes["seen"]


def test_further_parts_are_kept_and_restored():
    """parts=: what hooks keep comes back with the checkpoint, to the bits of a run left alone."""
    wanted = averaged_until(None, "whole")
    averaged_until(5, "run")
    # the hook runs before the save of its own step, so nothing is counted twice
    assert averaged_until(None, "run") == wanted
    with pytest.raises(ConfigError, match="parts= names model, which the trainer uses itself"):
        make_trainer(parts={"model": {}})
    with pytest.raises(ConfigError, match=r"has a state but no scope; .*Replicated\(ema\)"):
        make_trainer(parts={"ema": Averaged()})


class Kept:
    """A sink in memory."""

    def __init__(self):
        self.lines, self.closed = [], 0

    def start(self, attempt, restored_step):
        self.started = (attempt, restored_step)

    def log(self, step, values, tags):
        self.lines.append((step, dict(values), dict(tags)))

    def close(self):
        self.closed += 1


def test_sinks_get_every_line():
    """sinks=: the numbers of metrics.jsonl, as they come."""
    sink = Kept()
    make_trainer(sinks=[sink], log_every=2).fit(make_loader(), epochs=1)
    assert sink.closed == 1
    lines = read_metrics("run/metrics.jsonl")
    assert [(step, values.get("loss")) for step, values, _ in sink.lines] == [(x["step"], x.get("loss")) for x in lines]


def test_the_learning_rate_before_its_warm_up_is_recorded():
    """config.json holds what was asked for, whatever the schedule begins with."""
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=5)
    trainer = Trainer(model, optimizer, step, world=World.single(), run="run", scheduler=warm_up, progress=False)
    trainer.fit(make_loader())
    assert json.loads(Path("run/config.json").read_text())["config"]["optimizer"]["group 0"]["lr"] == 0.3


def waits(world, seconds):
    """The waiting shares of the lines that every rank got; rank 1's data are late by its own share of them."""

    class Late:
        def __init__(self, loader):
            self.loader = loader

        def __getattr__(self, name):
            return getattr(self.loader, name)

        def __len__(self):
            return len(self.loader)

        def __iter__(self):
            for batches in self.loader:
                time.sleep(seconds[world.rank])
                yield batches

    shares = []
    model = prepare(nn.Linear(4, 2).double(), world)
    hooks = Hooks(log=lambda _trainer, _step, values: shares.append(values["wait_share"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(model, optimizer, step, world=world, run=False, hooks=hooks, progress=False, log_every=2).fit(
        Late(make_loader(world))
    )
    return shares


def test_the_longest_wait_is_logged():
    """The share of waiting is that of the rank that waits most, on every rank."""
    first, second = run_ranks(waits, 2, (0.0, 0.2))
    assert first == second
    assert min(first) > 0


@pytest.mark.parametrize("options", [{}, {"limit_steps": 3}])
def test_a_lone_last_sample_is_told_before_the_first_step(options):
    """25 samples in batches of 8 leave one: batch statistics have none of it, said at once and not after an epoch."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    steps = []
    hooks = Hooks(step_end=lambda *_: steps.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, step, world=World.single(), run=False, hooks=hooks, progress=False, **options)
    if options:  # the run ends before that step
        assert trainer.fit(make_loader(samples=25)).num_steps == 3
        return
    with pytest.raises(StepError, match=r"last step .* has 1 of 25 samples.*, and '1' of the model takes batch.*drop"):
        trainer.fit(make_loader(samples=25))
    assert steps == []


def lone_share(world):
    model = prepare(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(StepError) as said:
        Trainer(model, optimizer, step, world=world, run=False, progress=False).fit(make_loader(world, samples=27))
    return str(said.value)


def test_a_lone_share_is_told_too():
    """3 samples on 2 ranks: one of them has one alone, and every rank says so."""
    for said in run_ranks(lone_share, 2):
        assert (
            "the last step of an epoch has 3 of 27 samples, shared by 2 ranks, so a rank gets a single sample" in said
        )


def test_a_lone_micro_batch_is_told_too():
    """27 samples in batches of 8 leave 3; micro-batches of at most 2 cut one off; full steps have 4 x 2."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), step, world=World.single(), run=False)
    with pytest.raises(
        StepError, match=r"has 3 of 27 samples, cut into 2 micro-batches of at most 2, so a rank gets a"
    ):
        trainer.fit(make_loader(samples=27, micro_batch=2))


def test_spatial_batch_norm_takes_a_lone_sample():
    """BatchNorm2d over more than one pixel has statistics of a single sample: nothing is refused."""

    def images(model, batch):
        return model(batch["x"].reshape(-1, 1, 2, 2)).mean((1, 2, 3)) ** 2

    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, images, world=World.single(), run=False, progress=False)
    assert trainer.fit(make_loader(samples=25)).num_steps == 4


def modes(net):
    trainer = Trainer(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        step,
        world=World.single(),
        run=False,
        progress=False,
        hooks=[Predictions(lambda model, x: {"first": model(x)[:, 0]}, torch.ones(2, 4, dtype=torch.float64))],
    )
    trainer.fit(make_loader(), val=make_loader(), epochs=2)
    return net.training, net[1].training, int(net[1].num_batches_tracked)


def test_frozen_parts_stay_frozen():
    """A norm in eval mode keeps it through training, validation and predictions; a model that is all in it trains."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    net[1].eval()
    assert modes(net) == (True, False, 0)
    assert modes(net.eval()) == (True, True, 8)
