"""The checkpoints of a run: written by a thread, the best of them kept, and resumed to the bit all the same."""

import contextlib
import errno
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.checkpoint import Checkpointer, Replicated
from rankwise.errors import RankwiseError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.tracking import Tracker, read_metrics
from rankwise.train import EMA, Hooks, Trainer, unwrapped
from rankwise.world import World


class StopError(Exception):
    """Stands for a crash."""


class Average:
    """The mean of the parameters over the steps so far."""

    def __init__(self, model):
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in unwrapped(model).named_parameters():
            self.values[name].lerp_(p.detach(), 0.3)

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values = {name: value.clone() for name, value in state.items()}


def loader(world, count=26):
    rng = np.random.default_rng(2)
    arrays = {"x": rng.normal(size=(count, 4)), "y": rng.integers(0, 2, size=count)}
    order = Order(count, batch_size=8, fingerprint="these")
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


def losses(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def train(world, run, *, stop=None, **options):
    """Train 3 epochs of 4 steps, or until it crashes; return all that has to be the same."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)).double()
    average, ema, seen = Average(model), EMA(model), []
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step_end(trainer, report):
        average.update(trainer.model)
        seen.append(float(report.loss[0]))
        scaler.scale(torch.ones(1))
        scaler.update(scaler.get_scale() * 2)
        if trainer.session.progressed.num_steps == stop:
            raise StopError

    trainer = Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.05),
        losses,
        world=world,
        run=run,
        hooks=[Hooks(step_end=step_end), ema],  # the crash comes before the EMA of its step
        parts={"average": Replicated(average), "own_scaler": Replicated(scaler)},
        progress=False,
        save_every=1,
        log_every=3,
        **options,
    )
    try:
        result = trainer.fit(loader(world), val=loader(world, 10), epochs=3)
    except StopError:
        return None
    weights = [p.detach().clone() for p in unwrapped(trainer.model).parameters()]
    averages = [*average.values.values(), *ema.state_dict()["averages"].values()]
    return weights, averages, scaler.get_scale(), dict(result.metrics), seen[-3:]


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def straight_and_crashed(world, folder):
    """In one go with plain saves; crashed at log steps, the second time with a thread, whose last save may be lost."""
    wanted = train(world, f"{folder}/whole")
    for stop, asynchronous in ((3, False), (6, True)):
        assert train(world, f"{folder}/crashed", stop=stop, asynchronous=asynchronous) is None
        world.barrier()
    return wanted, train(world, f"{folder}/crashed", asynchronous=True)


def test_a_crashed_run_whose_threads_write_ends_to_the_same_bits(tmp_path):
    """Weights, an average of them, a scaler, half accumulated metrics, random draws: on two ranks, in mid-epoch."""
    for wanted, found in run_ranks(straight_and_crashed, 2, str(tmp_path)):
        assert equal(wanted, found)
    assert not list((tmp_path / "crashed" / "checkpoints").glob(".*"))


def test_a_run_is_released_though_closing_fails(tmp_path, monkeypatch):
    """A disk is full when the numbers are closed: that is the error, and this process may open the run again."""

    def close(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    run = str(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Tracker, "close", close)
        with pytest.raises(OSError, match="No space left"):
            train(World.single(), run, stop=3)
    assert train(World.single(), run) is not None


def test_the_best_epochs_stay(tmp_path, monkeypatch):
    """Only saves after a validation are compared: those in mid-epoch carry the values of the epoch before."""
    monkeypatch.chdir(tmp_path)
    train(World.single(), "run", keep=1, keep_best=1, best_metric="val_loss", best_mode="max")
    found = Checkpointer("run", world=World.single(), metric="val_loss", mode="max")
    best = found.best()
    kept = sorted(int(path.name[-10:]) for path in Path("run/checkpoints").glob("step-*"))
    assert kept == sorted({best.step, 12})
    assert best.step % 4 == 0
    assert best.metrics["val_loss"] == best.meta["values"]["val_loss"]
    newest = found.newest()
    assert newest.step == 12
    assert newest.metrics["val_loss"] <= best.metrics["val_loss"]


def with_plateau(run, stop=None):
    """Train as the error for ReduceLROnPlateau says; return weights and learning rate."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, factor=0.5)

    def step_end(trainer, _report):
        if trainer.session.progressed.num_steps == stop:
            raise StopError

    hooks = Hooks(step_end=step_end, validation_end=lambda trainer, epoch, values: plateau.step(values["val_loss"]))
    parts = {"reducelronplateau": Replicated(plateau)}
    trainer = Trainer(model, optimizer, losses, world=World.single(), run=run, hooks=hooks, parts=parts, progress=False)
    with contextlib.suppress(StopError):
        trainer.fit(loader(World.single()), val=loader(World.single(), 10), epochs=4)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), optimizer.param_groups[0]["lr"]


def test_a_schedule_that_needs_a_value_is_resumed(tmp_path):
    """Stepped before the checkpoint of the epoch: a restart goes on with the rate that the epoch decided."""
    wanted, rate = with_plateau(tmp_path / "whole")
    with_plateau(tmp_path / "crashed", stop=9)
    found, same = with_plateau(tmp_path / "crashed")
    assert rate == same < 4.0
    assert torch.equal(wanted, found)


def test_a_run_that_a_hook_ends_after_an_epoch_keeps_that_epochs_values(tmp_path):
    """Its checkpoint is written again, as the last one; it may be the best."""
    model = nn.Linear(4, 2).double()
    hooks = Hooks(epoch_end=lambda trainer, epoch, values: trainer.stop("enough") if epoch else None)
    options = {"keep": 1, "keep_best": 1, "best_metric": "loss", "run": tmp_path / "run", "progress": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = Trainer(model, optimizer, losses, world=World.single(), hooks=hooks, **options).fit(
        loader(World.single()), epochs=5
    )
    best = Checkpointer(tmp_path / "run", world=World.single(), metric="loss").best()
    assert (best.step, best.metrics) == (result.num_steps, {"loss": result.metrics["loss"]})


def train_on_a_full_disk(world, folder, event=None, **options):
    """Train while only the main rank's lines cannot be written, from this event on; return the error."""

    def full(trainer, _):
        if world.is_main:
            lines = trainer.session.tracker
            for number in range(2 if event == "checkpoint_begin" else 0):
                lines.log(number, {"mine": 1.0})  # the second one is buffered
            lines._lines._hold_s = 0.0
            tracking.append_line = no_space

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    tracking = importlib.import_module("rankwise.tracking.jsonl")
    append = tracking.append_line
    if event is None and world.is_main:
        tracking.append_line = no_space
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options |= {"run": f"{folder}/{event}", "progress": False, "hooks": Hooks(**({event: full} if event else {}))}
    try:
        with pytest.raises((RankwiseError, OSError)) as caught:
            Trainer(model, optimizer, losses, world=world, **options).fit(loader(world), epochs=1)
    finally:
        tracking.append_line = append
    return str(caught.value)


def train_on_full_disks(world, folder):
    at_start = train_on_a_full_disk(world, folder)
    at_save = train_on_a_full_disk(world, folder, "checkpoint_begin", save_every=2, log_every=100)
    return at_start, at_save, train_on_a_full_disk(world, folder, "step_end", log_every=1)


def test_every_rank_fails_where_the_main_one_cannot_write_its_numbers(tmp_path):
    """With the cause, at the start, at a save or after a log step: the others do not wait in a collective."""
    for *told, at_log in run_ranks(train_on_full_disks, 2, str(tmp_path), timeout=60):
        for text in told:
            assert re.search(r"No space left on device: .*metrics\.jsonl.*; check path, permissions and free", text)
        assert re.search(r"No space left on device: .*metrics\.jsonl", at_log)


def test_what_a_hook_logs_last_is_kept(tmp_path):
    """After the last checkpoint, within the time that a line may wait."""

    def last(trainer, epoch, _values):
        for number in range(3):
            trainer.session.tracker.log(trainer.session.progressed.num_steps, {"mine": number}, epoch=epoch)

    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"run": tmp_path / "run", "progress": False, "hooks": Hooks(epoch_end=last)}
    Trainer(model, optimizer, losses, world=World.single(), **options).fit(loader(World.single()), epochs=1)
    assert [line["mine"] for line in read_metrics(tmp_path / "run") if "mine" in line] == [0, 1, 2]
