"""Another global batch size in mid-run: asked for by name, every sample once, and the schedule that of the samples."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.errors import ConfigError, RunDirError
from rankwise.train import BySamples, Hooks, Trainer
from rankwise.world import World

NUM_SAMPLES = 50


def fit(run, batch_size, seen, stop_after=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda unit: 0.5**unit)

    def step(model, batch):
        current.extend(batch.ids.tolist())
        return model(batch["x"])[:, 0] ** 2

    def note(trainer, report):
        # the first call is the warm-up's
        seen.append(sorted(current[-report.num_samples :]))
        if len(seen) == stop_after:
            raise InterruptedError

    current = []
    source = ArraySource({"x": np.random.default_rng(0).normal(size=(NUM_SAMPLES, 3))})
    loader = SampleLoader(source, order=Order(source, batch_size=batch_size, lanes=4), world=World.single())
    trainer = Trainer(
        *(model, optimizer, step),
        world=World.single(),
        run=run,
        progress=False,
        save_every=1,
        scheduler=BySamples(plan, per=10),
        hooks=Hooks(step_end=note),
        **options,
    )
    trainer.fit(loader, epochs=1)
    return optimizer.param_groups[0]["lr"]


def test_a_run_goes_on_with_another_batch_size_where_that_is_named(tmp_path):
    """Steps of 8, then of 4: each sample once, the rate that of 50 samples; without the name it is another run."""
    seen = []
    with pytest.raises(InterruptedError):
        fit(tmp_path / "run", 8, seen, stop_after=4)
    done = seen[:3]  # the fourth was not saved
    with pytest.raises(RunDirError, match=r"data.batch_size: 8 -> 4"):
        fit(tmp_path / "run", 4, [])
    rest = []
    rate = fit(tmp_path / "run", 4, rest, may_change={"batch_size"})
    assert [len(ids) for ids in done + rest] == [8] * 3 + [4] * 6 + [2]
    assert sorted(itertools.chain(*done, *rest)) == list(range(NUM_SAMPLES))
    assert rate == pytest.approx(0.5**5)


def test_a_schedule_by_samples_counts_what_is_over():
    """Steps of 4, 4 and 25 samples are three of a plan of ten; its state goes on in the middle of one."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    plans = [BySamples(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda unit: unit), per=10) for _ in range(2)]
    optimizer.step()
    for num_samples in (4, 4, 25):
        plans[0].step(num_samples)
    assert plans[0].get_last_lr() == [3.0]
    plans[1].load_state_dict(plans[0].state_dict())
    plans[1].step(6)
    assert plans[1].get_last_lr() == [3.0]
    plans[1].step(1)
    assert plans[1].get_last_lr() == [4.0]


def test_what_may_not_change_is_named():
    """Names that nobody knows, and a text in place of a set."""
    for wrong in ({"seed"}, "batch_size"):
        with pytest.raises(ConfigError, match="may_change accepts the names batch_size, max_grad_norm"):
            fit(False, 8, [], may_change=wrong)
