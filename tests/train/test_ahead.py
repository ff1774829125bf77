"""A trainer's loaders begin early, read ahead of the next epoch, and not beyond the last."""

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing.new_threads import threads_since
from rankwise.testing.patience import until
from rankwise.train import Hooks, Trainer
from rankwise.world import World


class Noting(ArraySource):
    """Notes the steps that are read."""

    stateless = True

    def __init__(self):
        rng = np.random.default_rng(4)
        super().__init__({"x": rng.normal(size=(20, 3)), "y": rng.integers(0, 2, size=20)})
        self.read_steps = []

    def read(self, plan, into):
        report = super().read(plan, into)
        self.read_steps.append((plan.share.step.epoch, plan.share.step.index))
        return report


def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x"].float()), batch["y"], reduction="none")


def fitted(limit_steps=None, hooks=None, sources=None, run=False, epochs=3, **options):
    """Steps that three epochs of training and of validation read, and the parameters."""
    torch.manual_seed(0)
    sources = sources or [Noting(), Noting()]
    train = SampleLoader(sources[0], order=Order(sources[0], batch_size=4), world=World.single(), **options)
    val = SampleLoader(
        sources[1], order=Order(sources[1], batch_size=4, kind="sequential"), world=World.single(), **options
    )
    model = nn.Linear(3, 2)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        step,
        world=World.single(),
        run=run,
        progress=False,
        limit_steps=limit_steps,
        hooks=hooks,
        resume="auto",
    )
    trainer.fit(train, val=val, epochs=epochs)
    assert not threads_since("rankwise-reader")
    return [source.read_steps for source in sources], torch.cat([p.detach().flatten() for p in model.parameters()])


def test_each_step_is_read_once_and_none_beyond():
    """Three epochs read what they need, in advance or not, and train to the same bits."""
    (train, val), parameters = fitted()
    assert sorted(train) == [(epoch, index) for epoch in range(3) for index in range(5)]
    assert sorted(val) == [(0, index) for index in range(5) for _ in range(3)]
    _, wanted = fitted(across_epochs=False)
    assert torch.equal(parameters, wanted)


def test_a_limit_ends_in_the_epoch_that_it_lies_in():
    """A run that is limited to ten steps, two epochs, reads nothing of the third."""
    (train, val), _ = fitted(limit_steps=10)
    assert sorted(train) == [(epoch, index) for epoch in range(2) for index in range(5)]
    assert len(val) == 2 * 5


def test_training_data_are_read_before_the_first_step():
    """While the user's own preparations go on, the steps that lie ready are read, and they are used."""
    sources = [Noting(), Noting()]
    begun = []

    def prepared(trainer):
        begun.append(until(lambda: sources[0].read_steps == [(0, 0), (0, 1)]))

    fitted(hooks=Hooks(fit_start=prepared), sources=sources, across_epochs=False)
    assert begun == [True]
    assert sources[0].read_steps == [(epoch, index) for epoch in range(3) for index in range(5)]


def test_held_out_data_are_read_before_their_first_epoch():
    """The first steps of a validation are read while the last ones of training are taken, each once."""
    sources = [Noting(), Noting()]
    begun = []

    def stepped(trainer, report):
        if report.resume.epoch > len(begun):  # the last one of an epoch
            begun.append(until(lambda: len(sources[1].read_steps) == 5 * len(begun) + 2))

    fitted(hooks=Hooks(step_end=stepped), sources=sources, across_epochs=False)
    assert begun == [True] * 3
    assert sources[1].read_steps == [(0, index) for index in range(5)] * 3


def test_a_run_that_goes_on_reads_from_there(tmp_path):
    """What is read early is where the checkpoint says, nothing of the beginning; the numbers are those of one run."""
    whole, parameters = fitted()
    interrupted, sources = [], [Noting(), Noting()]

    def stop(trainer, report):
        interrupted.append(report)
        if len(interrupted) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(hooks=Hooks(step_end=stop), run=tmp_path / "run")
    _, found = fitted(run=tmp_path / "run", sources=sources)
    assert sources[0].read_steps == [(epoch, index) for epoch in (1, 2) for index in range(5)]  # epoch 0 was saved
    assert torch.equal(found, parameters)
    assert len(whole[0]) == 15
