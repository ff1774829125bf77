"""Averages over ranks, devices and optimizers of models that nothing wraps."""

import pytest
import torch
from torch import nn

from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.train import (
    average_gradients,
    average_parameters,
    device_of,
    has_batch_norm,
    move_optimizer,
)


def test_averages_over_two_ranks():
    """Gradients and parameters are the mean of both ranks; a gradient that one rank has counts as zero on the other."""

    def averaged(world):
        torch.manual_seed(0)
        model = nn.ModuleDict({"a": nn.Linear(2, 1), "one": nn.Linear(1, 1), "none": nn.Linear(1, 1)})
        model["norm"] = nn.BatchNorm1d(2)
        model["norm"].running_mean += world.rank
        model["norm"].num_batches_tracked += world.rank
        (model["a"](torch.full((1, 2), 1.0 + world.rank)).sum()).backward()
        if world.rank == 1:
            model["one"](torch.ones(1, 1)).sum().backward()
        average_gradients(model, world)
        with torch.no_grad():
            model["a"].weight.fill_(float(world.rank))
        average_parameters(model, world)
        return {
            "a": model["a"].weight.grad.tolist(),
            "one": model["one"].weight.grad.tolist(),
            "none": model["none"].weight.grad,
            "weight": model["a"].weight.tolist(),
            "mean": model["norm"].running_mean.tolist(),
            "count": model["norm"].num_batches_tracked.item(),
        }

    first, second = run_ranks(averaged, 2)
    wanted = {"a": [[1.5, 1.5]], "one": [[0.5]], "none": None, "weight": [[0.5, 0.5]], "mean": [0.5, 0.5]}
    assert first == wanted | {"count": 0}
    assert second == wanted | {"count": 1}


def test_what_a_model_has_and_where_it_is():
    """Batch norms are found at any depth; one device is returned, none or several are refused by name."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.BatchNorm1d(1)))
    assert has_batch_norm(model)
    assert not has_batch_norm(nn.LayerNorm(1))
    assert device_of(model) == torch.device("cpu")
    model[0].to("meta")
    with pytest.raises(ConfigError, match="this Sequential has cpu, meta"):
        device_of(model)
    with pytest.raises(ConfigError, match="no parameters and no buffers"):
        device_of(nn.ReLU())


def test_the_state_of_an_optimizer_follows_its_model():
    """Moments move, also nested ones; the step count of Adam stays on the CPU, where torch wants it."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.state[model.bias]["nested"] = [{"x": torch.ones(1)}, 3]
    move_optimizer(optimizer, "meta")
    state = optimizer.state[model.bias]
    assert (state["exp_avg"].device.type, state["step"].device.type) == ("meta", "cpu")
    assert (state["nested"][0]["x"].device.type, state["nested"][1]) == ("meta", 3)
    other = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), momentum=0.9)
    optimizer.state[other.weight]["momentum_buffer"] = torch.ones(1, 1, device="meta")
    with pytest.raises(NotImplementedError, match="meta"):
        move_optimizer(optimizer)  # to where the parameter is; torch takes nothing off this device
