"""Parts that are not Stateful by themselves."""

import random

import numpy as np
import pytest
import torch

from rankwise.checkpoint import Checkpointer, RandomState, Replicated
from rankwise.checkpoint.parts import as_part
from rankwise.data.contract import Stateful
from rankwise.errors import ConfigError
from rankwise.world import World


def draw():
    gauss = (random.gauss(0, 1), np.random.randn())  # noqa: NPY002  (the global generators are what is tested)
    return (*gauss, random.random(), np.random.random(), torch.rand(3).tolist())  # noqa: NPY002


def test_random_state_continues(tmp_path):
    """All generators go on where they stood, second halves of Gaussian pairs included."""
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    draw()
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"random": RandomState()})
    wanted = [draw() for _ in range(3)]
    checkpointer.restore({"random": RandomState()})
    assert [draw() for _ in range(3)] == wanted


def test_a_training_continues_bit_for_bit(tmp_path):
    """Model, optimizer and schedule from a checkpoint take the same steps as the ones that never stopped."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return model, optimizer, schedule

    def train(model, optimizer, schedule, steps):
        for step in steps:
            optimizer.zero_grad()
            model(torch.full((4, 3), 0.1 * step) + torch.eye(4, 3)).square().sum().backward()
            optimizer.step()
            schedule.step()
        return [parameter.detach().clone() for parameter in model.state_dict().values()]

    def parts(model, optimizer, schedule):
        return {"model": Replicated(model), "optimizer": Replicated(optimizer), "schedule": Replicated(schedule)}

    first, second = made(), made()
    train(*first, range(5))
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(5, parts(*first))
    wanted = train(*first, range(5, 9))
    checkpointer.restore(parts(*second))
    assert all(torch.equal(one, other) for one, other in zip(train(*second, range(5, 9)), wanted, strict=True))


def test_what_does_not_say_how_it_survives_is_refused():
    """A module without scope is no part; the message names the adapter."""
    with pytest.raises(ConfigError, match=r"the part 'model' \(Linear\) has a state but no scope.*Replicated\(model\)"):
        as_part("model", torch.nn.Linear(1, 1))


@pytest.mark.parametrize("part", [RandomState(), Replicated(torch.nn.Linear(1, 1))])
def test_parts_are_stateful(part):
    """They fit the contract."""
    assert isinstance(part, Stateful)
