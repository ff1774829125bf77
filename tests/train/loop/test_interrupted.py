"""A run that is asked to stop: it saves in mid-epoch, says so in its record, and goes on to the same bits."""

import json
import os
import signal

import numpy as np
import pytest
import torch

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.errors import Interrupted
from rankwise.train import Hooks
from rankwise.world import World


def step(model, batch):
    return (model(batch["x"]) ** 2).mean(1)


def fit(run, *, stop_at=None, **options):
    """Train two epochs of five steps with a validation; SIGTERM comes in the step, or validation, of that number."""
    torch.manual_seed(0)
    model, world = torch.nn.Linear(3, 2).double(), World.single()
    source = ArraySource({"x": np.random.default_rng(0).normal(size=(50, 3))})
    met = []

    def counted(model, batch):
        met.append(1)
        if len(met) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(model, batch)

    loader = SampleLoader(source, order=rankwise.Order(source, batch_size=10), world=world)
    held_out = rankwise.Order(source, batch_size=25, kind="sequential")
    val = SampleLoader(source, order=held_out, world=world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = rankwise.Trainer(
        model, optimizer, counted, world=world, run=run, progress=False, hooks=Hooks(), log_every=3, **options
    )
    result = trainer.fit(loader, val=val, epochs=2)
    return result, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("undisturbed") / "run")


# with the warm-up pass: 1, steps 2 to 6, validation 7 and 8, steps 9 to 13, validation 14 and 15
@pytest.mark.parametrize(("stop_at", "step"), [(3, 2), (7, 5), (9, None), (12, None), (14, 10)])
def test_stopped_in_a_step_or_a_validation(stop_at, step, tmp_path, undisturbed):
    """It ends after that step with 75; the next start runs what is left, the validation included, to the same bits."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", stop_at=stop_at)
    assert signal.getsignal(signal.SIGTERM) is before
    told = json.loads((tmp_path / "run" / "config.json").read_text())["environment"]["1"]["interrupted"]
    assert told["reason"] == "SIGTERM"
    assert step in {None, told["step"]}
    result, parameters = fit(tmp_path / "run")
    assert result.resumed_step == told["step"]
    assert (result.num_steps, dict(result.metrics)) == (10, dict(undisturbed[0].metrics))
    assert torch.equal(parameters, undisturbed[1])


def test_a_time_limit(tmp_path, undisturbed, monkeypatch):
    """`max_seconds` ends each start after one step; it makes no other run, and the last comes to the same bits."""
    for done in (1, 2):
        with pytest.raises(Interrupted):
            fit(tmp_path / "run", max_seconds=1e-9)
        record = json.loads((tmp_path / "run" / "config.json").read_text())["environment"][str(done)]
        assert record["interrupted"]["step"] == done
        assert "time limit" in record["interrupted"]["reason"]
    monkeypatch.setenv("RANKWISE_MAX_SECONDS", "10000")
    assert torch.equal(fit(tmp_path / "run")[1], undisturbed[1])
