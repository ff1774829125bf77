"""Every loader trains through the exact step, ranks without samples included."""

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import ExactStep, prepare
from rankwise.world import World

NUM_SAMPLES, BATCH = 11, 2  # three ranks share batches of two: one rank is empty in every step


def arrays():
    rng = np.random.default_rng(4)
    return {"x": rng.normal(size=(NUM_SAMPLES, 3)), "y": rng.integers(0, 2, size=NUM_SAMPLES)}


class Dictionaries(torch.utils.data.Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return {name: values[index] for name, values in arrays().items()}


def make_loader(kind, world, order):
    if kind == "reference":
        return ArrayLoader(arrays(), order, seed=order.seed, rank=world.rank, world_size=world.world_size)
    if kind == "samples":
        return SampleLoader(ArraySource(arrays()), order=order, world=world)
    return DatasetLoader(Dictionaries(), order=order, world=world)


def train(world, kind):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    order = Order(ArraySource(arrays()) if kind == "samples" else NUM_SAMPLES, batch_size=BATCH)
    model = prepare(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double(), world)
    model.eval()  # running statistics, so that any cut of a batch is one function

    def step_fn(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.3), step_fn, world=world)
    loader = make_loader(kind, world, order)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batches in loader:
            loader.mark_done(step(batches).resume)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["reference", "samples", "dataset"])
def test_three_ranks_train_like_one(kind):
    """Batches of two on three ranks: the parameters of one rank, within 1e-12."""
    wanted = train(World.single(), kind)
    for got in run_ranks(train, 3, kind):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
