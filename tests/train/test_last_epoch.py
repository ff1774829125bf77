"""A trainer's loaders read ahead of the next epoch, and not beyond the last."""

import numpy as np
import torch
from torch import nn

from rankwise.data.order import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing.new_threads import threads_since
from rankwise.train import Trainer
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


def fitted(limit_steps=None, **options):
    """Steps that three epochs of training and of validation read, and the parameters."""
    torch.manual_seed(0)
    sources = [Noting(), Noting()]
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
        run=False,
        progress=False,
        limit_steps=limit_steps,
    )
    trainer.fit(train, val=val, epochs=3)
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
