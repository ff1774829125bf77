"""Ranks that would train different things are told so on every rank, with both values, and nobody waits."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.errors import DesyncError, StepError
from rankwise.testing import run_ranks
from rankwise.train import ExactStep, Trainer, prepare
from rankwise.train.loaders.agreement import data_facts
from rankwise.world import World

NUM_SAMPLES = 24


class Rows(torch.utils.data.Dataset):
    """A dataset without a fingerprint; opens its file when it is first read."""

    def __init__(self, num_samples=NUM_SAMPLES, scale=1.0, noise=None):
        self.values = np.arange(num_samples * 3.0).reshape(num_samples, 3) * scale
        self.noise = noise
        self.file = None

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        self.file = self.file or object()
        if self.noise == "own":
            Rows.drawn += 1
            return self.values[index] + Rows.drawn
        return self.values[index] + (0 if self.noise is None else random.random())

    drawn = 0


def squares(model, batch):
    return model(batch[0] if isinstance(batch.data, tuple) else batch.data)[:, 0] ** 2


def make_loader(world, kind):
    """The loader of a rank; the second rank's differs by kind."""
    odd = world.rank == 1
    order = {"batch_size": 8 if kind == "batch size" and odd else 6}
    order["seed"] = 7 if kind == "seed" and odd else 5
    data = Rows(
        num_samples=NUM_SAMPLES + 6 * (kind == "length" and odd),
        scale=2.0 if kind == "content" and odd else 1.0,
    )
    loader = DatasetLoader(
        data,
        order=Order(len(data), **order),
        micro_batch=2 if kind == "micro-batches" and odd else 3,
        world=World.single() if kind == "single" else world,
    )
    if kind == "epoch" and odd:
        loader.set_epoch(1)
    if kind == "position" and odd:
        loader.mark_done(next(iter(loader))[0].resume)
    return loader


def train(world, kind, by_trainer):
    torch.manual_seed(0)
    model = prepare(nn.Linear(3, 1).double(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    mine = replace(world, seed=world.seed + world.rank) if kind == "world" else world
    loader = make_loader(mine, kind)
    if by_trainer:
        Trainer(model, optimizer, squares, world=mine, run=False, progress=False).fit(loader, epochs=2)
        return
    step = ExactStep(model, optimizer, squares, world=mine)
    for batches in loader:
        step(batches)


def said(world, kind, by_trainer):
    try:
        train(world, kind, by_trainer)
    except DesyncError as error:
        world.barrier()  # the group is as it was
        return str(error)
    return "nothing"


WANTED = {
    "seed": "seed of the order: 5 on rank 0; 7 on rank 1",
    "world": "seed of the world: 1889 on rank 0; 1890 on rank 1",
    "batch size": {
        False: "samples of the step: 6 on rank 0; 8 on rank 1",
        True: "batch size: 6 on rank 0; 8 on rank 1",
    },
    "micro-batches": "micro-batches of the step: 1 on rank 0; 2 on rank 1",
    "epoch": "epoch: 0 on rank 0; 1 on rank 1",
    "position": "position: 0 on rank 0; 6 on rank 1",
    "length": {False: "recipe of the order: ", True: "steps left in the epoch: 4 on rank 0; 5 on rank 1"},
    "single": "one of rank 0 of 1 is used by rank 1",
    "content": "content of sample 0: ",
    "nothing": None,
}


@pytest.mark.parametrize("by_trainer", [False, True], ids=["own loop", "trainer"])
@pytest.mark.parametrize("kind", WANTED)
def test_a_difference_is_told_on_every_rank(kind, by_trainer):
    """Both values with their ranks; the group stays usable."""
    wanted = WANTED[kind][by_trainer] if isinstance(WANTED[kind], dict) else WANTED[kind]
    for message in run_ranks(said, 2, kind, by_trainer, timeout=180):
        if wanted is None:
            assert message == "nothing"
        else:
            assert "the ranks would not train the same" in message
            assert wanted in message


def test_sample_zero_is_compared_where_it_can_be():
    """Sources and datasets, those that draw from the global generators too; not what is different at each reading."""

    def content(loader):
        return data_facts("train", loader)["train: content of sample 0"]

    def of_rows(**options):
        return content(DatasetLoader(Rows(**options), order=Order(NUM_SAMPLES, batch_size=6), world=World.single()))

    def of_source(scale):
        source = ArraySource({"x": np.arange(40_000.0).reshape(-1, 2) + scale * np.eye(20_000, 2)})
        return content(SampleLoader(source, order=Order(source, batch_size=6)))

    assert of_rows() == of_rows() != of_rows(scale=2.0)
    assert of_rows(noise="global") == of_rows(noise="global") is not None
    assert of_rows(noise="own") is None
    assert of_source(0) == of_source(0) != of_source(1)


def test_reading_sample_zero_leaves_no_trace():
    """The generators stand where they stood, and what the dataset opened stays with the copy that read."""
    rows = Rows(noise="global")
    inside = torch.utils.data.Subset(rows, range(NUM_SAMPLES))
    loader = DatasetLoader(inside, order=Order(NUM_SAMPLES, batch_size=6), world=World.single())
    random.seed(3)
    torch.manual_seed(3)
    assert data_facts("train", loader)["train: content of sample 0"] is not None
    assert rows.file is None
    drawn = random.random(), torch.rand(1).item()
    random.seed(3)
    torch.manual_seed(3)
    assert drawn == (random.random(), torch.rand(1).item())


def test_batches_of_another_kind_are_refused_in_words():
    """The exact step over a plain DataLoader: what it wants, and what goes with a DataLoader."""
    model = nn.Linear(3, 1).double()
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), squares, world=World.single())
    with pytest.raises(StepError, match=r"needs the tuple of micro-batches .*got a Tensor: .*a StreamLoader"):
        step(torch.ones(4, 3))
