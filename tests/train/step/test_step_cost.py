"""What a step adds to the user's own work, counted: calls of Python functions and of the system, not seconds."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.tracking import RunDir
from rankwise.train import ExactStep
from rankwise.world import World

BATCH, STEPS = 8, 60
_PACKAGE = str(Path(rankwise.__file__).parent)


def losses(model, batch):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction="none").mean(1)


class Counting:
    """Counts calls of rankwise's own functions in the second half of what it iterates, from one step to the next."""

    def __init__(self, loader):
        self.loader, self.num_calls, self.num_steps = loader, 0, 0

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __len__(self):
        return len(self.loader)

    def _note(self, frame, event, argument):
        self.num_calls += event == "call" and frame.f_code.co_filename.startswith(_PACKAGE)

    def __iter__(self):
        for number, batches in enumerate(self.loader):
            # its own reading is not counted
            sys.setprofile(self._note if number >= STEPS // 2 else None)
            self.num_steps += number >= STEPS // 2
            yield batches
            sys.setprofile(None)

    @property
    def calls_a_step(self):
        return self.num_calls / self.num_steps


@pytest.fixture
def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    source = ArraySource({"x": torch.randn(BATCH * STEPS, 4).numpy(), "y": torch.randn(BATCH * STEPS, 2).numpy()})
    loader = SampleLoader(source, order=rankwise.Order(source, batch_size=BATCH))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), Counting(loader)


def test_an_exact_step_is_few_calls(made):
    """On one rank; each call costs about 0.1 microseconds alone, and several times that between operations of torch."""
    model, optimizer, data = made
    step = ExactStep(model, optimizer, losses, world=World.single())
    for batches in data:
        step(batches)
    assert data.calls_a_step <= 33


def test_a_step_of_the_trainer_is_few_calls_and_no_fence(made, tmp_path, monkeypatch):
    """With tracking, a line every ten steps: the lines of a second go into the file without the run's lock."""
    model, optimizer, data = made
    fences, real = [], RunDir._enter_fence
    monkeypatch.setattr(RunDir, "_enter_fence", lambda run: fences.append(1) or real(run))
    monkeypatch.setattr("rankwise.tracking.run_dir._LOOK_S", 3600.0)
    options = {"world": World.single(), "run": tmp_path / "run", "progress": False, "guard": False}
    trainer = rankwise.Trainer(model, optimizer, losses, **options)
    seen = []
    trainer.hooks._calls["log"].append(lambda *_: seen.append(len(fences)))
    trainer.fit(data)
    assert len(seen) == STEPS // 10
    assert seen[-1] == seen[0]
    assert data.calls_a_step <= 52
