"""The trainer on one rank: resume, refuse, finish, validate, log; what several ranks add is tested in main_job."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import ConfigError, DesyncError, RunDirError, StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.tracking import read_metrics
from rankwise.train import Hooks, Trainer, evaluate, prepare
from rankwise.world import World

NUM_SAMPLES = 26


@pytest.fixture(autouse=True)
def one_thread(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


def make_loader(world=None, batch_size=8, kind="shuffle", samples=NUM_SAMPLES):
    world = world or World.single()
    rng = np.random.default_rng(2)
    arrays = {"x": rng.normal(size=(samples, 4)), "y": rng.integers(0, 2, size=samples)}
    order = Order(samples, batch_size=batch_size, kind=kind)
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


def step(model, batch):
    logits = model(batch["x"])
    losses = nn.functional.cross_entropy(logits, batch["y"], reduction="none")
    return losses, {"accuracy": logits.argmax(1) == batch["y"]}


def make_trainer(*, lr=0.05, step_fn=step, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    return Trainer(
        model,
        optimizer,
        step_fn,
        world=World.single(),
        scheduler=scheduler,
        progress=False,
        **{"run": "run", **options},
    )


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class StopError(Exception):
    """Stands for a crash."""


def stop_after(num_steps):
    def hook(trainer, _report):
        if trainer.session.progressed.num_steps == num_steps:
            raise StopError

    return Hooks(step_end=hook)


@pytest.mark.parametrize("crash", [1, 5, 8, 12])
def test_a_crashed_run_continues_to_the_same_bits(crash):
    """After any step, with dropout, scheduler and running means: parameters and logged numbers of a run left alone."""
    whole = make_trainer(run="whole", save_every=3, log_every=2)
    wanted = whole.fit(make_loader(), val=make_loader(kind="sequential"), epochs=4)
    with pytest.raises(StopError):
        make_trainer(save_every=3, log_every=2, hooks=stop_after(crash)).fit(
            make_loader(), val=make_loader(kind="sequential"), epochs=4
        )
    again = make_trainer(save_every=3, log_every=2)
    result = again.fit(make_loader(), val=make_loader(kind="sequential"), epochs=4)
    assert result.resumed_step == max(saved for saved in (0, 3, 4, 6, 8, 9) if saved < crash)
    assert torch.equal(parameters(again), parameters(whole))
    assert result.metrics == wanted.metrics
    timed = ("time", "attempt", "samples_per_s", "wait_share")
    lineages = [
        [{k: v for k, v in line.items() if k not in timed} for line in read_metrics(f"{run}/metrics.jsonl")]
        for run in ("whole", "run")
    ]
    assert lineages[0] == lineages[1]


def test_another_configuration_is_refused_with_the_differences():
    """Changing the learning rate of an unfinished run is refused; the message shows both values and --fresh."""
    with pytest.raises(StopError):
        make_trainer(save_every=2, hooks=stop_after(5)).fit(make_loader(), epochs=4)
    with pytest.raises(RunDirError, match=r"(?s)lr.*0\.05.*0\.01.*--fresh"):
        make_trainer(save_every=2, lr=0.01).fit(make_loader(), epochs=4)


def test_resume_must_and_never():
    """Must wants something to continue, never wants nothing there."""
    with pytest.raises(RunDirError):
        make_trainer(resume="must").fit(make_loader())
    with pytest.raises(StopError):
        make_trainer(save_every=2, hooks=stop_after(3)).fit(make_loader(), epochs=2)
    with pytest.raises(RunDirError):
        make_trainer(save_every=2, resume="never").fit(make_loader(), epochs=2)
    assert make_trainer(save_every=2, resume="must").fit(make_loader(), epochs=2).resumed_step == 2


def test_fresh_moves_the_old_run_aside(monkeypatch, caplog):
    """RANKWISE_FRESH=1, as `rankwise run --fresh` sets it: the old run stays under another name."""
    make_trainer().fit(make_loader(), epochs=1)
    monkeypatch.setenv("RANKWISE_FRESH", "1")
    with caplog.at_level("WARNING"):
        result = make_trainer(lr=0.01).fit(make_loader(), epochs=1)
    assert "the earlier run was moved to" in caplog.text
    assert not result.already_finished
    assert len([p for p in result.run_dir.parent.iterdir() if p.is_dir()]) == 2


def test_the_log_holds_the_exact_means():
    """Each line is the mean since the line before, over samples; the epoch's line over the epoch."""
    losses = []

    def recording(model, batch):
        values, metrics = step(model, batch)
        losses.append(values.detach())
        return values, metrics

    trainer = make_trainer(step_fn=recording, log_every=2)
    trainer.fit(make_loader(), epochs=1)
    lines = [line for line in read_metrics("run/metrics.jsonl") if "loss" in line]
    del losses[0]  # the warm-up
    wanted = [torch.cat(losses[i : i + 2]).mean().item() for i in (0, 2)]
    assert [line["loss"] for line in lines] == pytest.approx(wanted, rel=1e-12)
    epoch = [line for line in read_metrics("run/metrics.jsonl") if "epoch_loss" in line]
    assert epoch[0]["epoch_loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-12)


@pytest.mark.parametrize("name", ["lr", "wait_share", "samples_per_s"])
def test_a_metric_that_would_hide_the_loops_own_number_is_refused(name):
    """A log line holds the loop's own numbers; a metric of such a name would be lost without a word."""

    def named(model, batch):
        losses, metrics = step(model, batch)
        return losses, {name: metrics["accuracy"]}

    with pytest.raises(StepError, match=f"metrics named {name}"):
        make_trainer(step_fn=named, log_every=1).fit(make_loader(), epochs=1)


def test_limits_and_overfit():
    """limit_steps ends early and counts over restarts; overfit drives one batch's loss down and writes nothing."""
    result = make_trainer(limit_steps=6).fit(make_loader(), epochs=4)
    assert result.num_steps == 6
    trainer = make_trainer(run="other")
    loader = make_loader()
    losses = trainer.overfit(loader, steps=80)
    assert len(losses) == 80
    assert losses[-1] < 0.5 * losses[0]
    assert not (result.run_dir.parent / "other").exists()
    assert loader.state_dict()["position"] == 0


def test_without_a_run_directory_nothing_is_written(tmp_path):
    """run=False: no folder, no file."""
    result = make_trainer(run=False).fit(make_loader(), epochs=2)
    assert result.run_dir is None
    assert result.num_steps == 8
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_named():
    """Unknown or impossible numbers are refused with what there is."""
    with pytest.raises(ConfigError, match=r"no option epochs; epochs: fit.* takes that; its options are log_every"):
        make_trainer(epochs=2)
    with pytest.raises(ConfigError, match="no option log_evry; its options are log_every"):
        make_trainer(log_evry=3)
    with pytest.raises(ConfigError, match="save_every must be an integer of at least 1, got 0"):
        make_trainer(save_every=0)
    for epochs in (0, 1.5):
        with pytest.raises(ConfigError, match="epochs must be an integer of at least 1"):
            make_trainer().fit(make_loader(), epochs=epochs)
    with pytest.raises(ConfigError, match=r"the model must be a torch.nn.Module, got <function"):
        Trainer(lambda x: x, lambda parameters: None, lambda model, batch: None)


def test_what_has_no_position_is_refused():
    """A dataset has no steps: it says what to pass instead, before a run directory is made."""
    with pytest.raises(ConfigError, match=r"a TensorDataset, which has no __iter__, .*: give it to DatasetLoader"):
        make_trainer().fit(torch.utils.data.TensorDataset(torch.ones(4)))
    assert not Path("run").exists()


def test_prepare_refuses_what_it_decides():
    """Wrapping twice, and DistributedDataParallel's options that the world decides."""
    with pytest.raises(ConfigError, match="device_ids"):
        prepare(nn.Linear(1, 1), World.single(), device_ids=[0])
    with pytest.raises(ConfigError, match="has no option bucket_cap;"):
        prepare(nn.Linear(1, 1), World.single(), bucket_cap=3)
    model = nn.Linear(1, 1)
    assert prepare(model, World.single()) is model


def evaluated(world):
    torch.manual_seed(0)
    model = prepare(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double(), world)
    if world.rank:
        getattr(model, "module", model)[1].running_mean.fill_(9.0)  # ranks see other samples in training
    return evaluate(model, make_loader(world, batch_size=5, kind="sequential", samples=11), step, world=world)


def test_evaluation_is_that_of_one_rank():
    """Ragged: 11 samples in batches of 5 over 3 ranks, the last batch one sample: accuracy equal, loss within 1e-12."""
    wanted = evaluated(World.single())
    for got in run_ranks(evaluated, 3):
        assert got["accuracy"] == wanted["accuracy"]
        assert got["loss"] == pytest.approx(wanted["loss"], rel=1e-12)


def configuration_differs(world):
    model = prepare(nn.Linear(4, 2).double(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + world.rank))
    trainer = Trainer(model, optimizer, step, world=world, run="run", progress=False)
    with pytest.raises(DesyncError, match="configuration differs between ranks"):
        trainer.fit(make_loader(world))


def test_ranks_with_different_configurations_are_named():
    """A learning rate that depends on the rank is a bug; it is found before the first step."""
    run_ranks(configuration_differs, 2)


def test_config_is_recorded():
    """config.json holds what made the run: model, optimizer, data recipe, the user's own values."""
    make_trainer(config={"note": "x"}).fit(make_loader())
    config = json.loads(Path("run/config.json").read_text())["config"]
    assert config["user"] == {"note": "x"}
    assert config["optimizer"]["class"] == "AdamW"
    assert config["data"]["recipe"].startswith("v")
    assert config["data"]["batch_size"] == 8
