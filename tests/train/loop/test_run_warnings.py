"""What a run says that would go wrong without a word: plans that a resume keeps, weights that a failure leaves."""

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.testing import ArrayLoader
from rankwise.tracking.ownership import FINISHED_HERE
from rankwise.train import BySamples, Hooks, Trainer
from rankwise.world import World


@pytest.fixture(autouse=True)
def one_thread(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


def make_loader():
    rng = np.random.default_rng(2)
    arrays = {"x": rng.normal(size=(26, 4)), "y": rng.integers(0, 2, size=26)}
    order = Order(26, batch_size=8, fingerprint="these")
    return ArrayLoader(arrays, order, seed=order.seed, rank=0, world_size=1)


def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


class StopError(Exception):
    """Stands for a crash."""


def trainer_with(plan=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"run": "run", "progress": False, "scheduler": plan and plan(optimizer), **options}
    return Trainer(model, optimizer, step, world=World.single(), **options)


def test_a_longer_run_says_that_its_schedule_keeps_its_plan(caplog):
    """Inside BySamples and SequentialLR too; nothing is said of an equal plan, or of one that a function gives."""
    schedules = torch.optim.lr_scheduler

    def nested(optimizer, steps):
        halves = [schedules.LinearLR(optimizer), schedules.CosineAnnealingLR(optimizer, steps)]
        return BySamples(schedules.SequentialLR(optimizer, halves, [3]), per=1)

    def by_function(optimizer, steps):
        return schedules.LambdaLR(optimizer, lambda done: 1 - done / steps)

    for plan, told in (
        (nested, "keeps the plan of the checkpoint: SequentialLR[1].CosineAnnealingLR.T_max=4 (here 8). To train"),
        (by_function, None),
    ):
        for steps, again in ((4, False), (4, True), (8, True)):
            FINISHED_HERE.clear()
            caplog.clear()
            trainer_with(lambda optimizer: plan(optimizer, steps), run=plan.__name__).fit(  # noqa: B023
                make_loader(), epochs=steps // 4 + again
            )
            found = [text for text in caplog.messages if "keeps the plan" in text]
            assert found == [] if steps == 4 or told is None else told in found[0], (steps, caplog.messages)


@pytest.mark.parametrize("run", ["run", False])
def test_a_second_fit_after_a_failure_says_what_the_model_has(caplog, run):
    """No checkpoint holds the steps of the first, and the weights still have them; a third, after success, is quiet."""

    def hook(trainer, _report):
        if failing and trainer.session.progressed.num_steps == 3:
            raise StopError

    failing = True
    trainer = trainer_with(run=run, hooks=Hooks(step_end=hook))
    with pytest.raises(StopError):
        trainer.fit(make_loader(), epochs=1)
    failing = False
    for epochs in (1, 2):
        caplog.clear()
        trainer.fit(make_loader(), epochs=epochs)
        told = [text for text in caplog.messages if "earlier fit of this Trainer failed after step 3" in text]
        assert len(told) == (epochs == 1)


class Once(torch.utils.data.IterableDataset):
    def __init__(self):
        self.rows = iter([(row,) for row in torch.zeros(3, 4, dtype=torch.double)])

    def __iter__(self):
        return self.rows


def test_nothing_to_train_and_nothing_to_validate_are_said(caplog):
    """A loader that is past the epochs, and held-out data that are exhausted after their first pass."""
    trainer, loader = trainer_with(run=False, val_fn=lambda model, batch: model(batch[0]).pow(2).mean(1)), make_loader()
    held_out = torch.utils.data.DataLoader(Once(), batch_size=2)
    values = [trainer.fit(loader, val=held_out, epochs=epochs).metrics for epochs in (1, 1, 2)]
    assert ["val_loss" in found for found in values] == [True, False, False]
    told = [text for text in caplog.messages if "nothing was trained" in text or "gave no batch on any rank" in text]
    assert [text.partition(":")[0] for text in told] == [
        "nothing was trained",
        "the held-out data gave no batch on any rank",
    ]
