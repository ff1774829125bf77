"""Loops of others: Accelerate and Lightning are looked through; sound loops hear nothing, broken ones are stopped."""

import logging
import os
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankwise import guarded
from rankwise.errors import GuardError
from rankwise.testing import run_ranks

# looked for, not imported: only the ranks need them, and they take seconds
pytestmark = [
    pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")
    for package in ("accelerate", "lightning")
]

DATA = TensorDataset(torch.randn(24, 4, generator=torch.Generator().manual_seed(0)))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def accelerated(world, past):
    """Two epochs with accumulation; `past` calls the module inside."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    layer = net()
    model, optimizer, loader = accelerator.prepare(
        layer, torch.optim.SGD(layer.parameters(), lr=0.1), DataLoader(DATA, batch_size=4, shuffle=True)
    )
    try:
        with guarded(model, optimizer=optimizer, loader=loader, world=world) as guard:
            for _ in range(3):
                for (x,) in loader:
                    with accelerator.accumulate(model):
                        accelerator.backward((layer if past else model)(x).square().mean())
                        optimizer.step()
                        optimizer.zero_grad()
    except GuardError as error:
        return str(error), [], 0
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    return "", guard.findings, guard.num_checked


def lightened(world, past):
    """Two epochs of Lightning, which runs forward and backward inside the optimizer's step."""
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins.environments import LightningEnvironment

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Place(LightningEnvironment):
        creates_processes_externally = True

        def local_rank(self):
            return world.rank

    class Guarded(Callback):
        def on_train_start(self, trainer, module):
            self.guard = guarded(
                trainer.strategy.model, optimizer=trainer.optimizers, loader=trainer.train_dataloader, world=world
            )

        def on_train_end(self, trainer, module):
            self.guard.close()

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, number):
            return self.net(batch[0]).square().mean()

        def on_train_start(self):
            if past:
                self.double()

        def on_before_batch_transfer(self, batch, number):
            return [batch[0].to(self.net[0].weight.dtype)]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = Guarded()
    trainer = Trainer(
        accelerator="cpu",
        devices=world.world_size,
        strategy="ddp",
        plugins=[Place()],
        max_epochs=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(Module(), DataLoader(DATA, batch_size=4, shuffle=True))
    except GuardError as error:
        return str(error), [], 0
    return "", callback.guard.findings, callback.guard.num_checked


def all_cases(world):
    before = dict(os.environ)
    # as a launcher would say it: Accelerate believes these and not the group
    sizes = {"RANK": world.rank, "LOCAL_RANK": world.rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in sizes.items()})
    results = {(loop.__name__, past): loop(world, past) for loop in (accelerated, lightened) for past in (False, True)}
    os.environ.clear()
    os.environ.update(before)
    return results


@pytest.fixture(scope="module")
def told():
    return run_ranks(all_cases, 2)


@pytest.mark.parametrize("loop", ["accelerated", "lightened"])
def test_sound_loops_hear_nothing(told, loop):
    """Wrapped models, optimizers and loaders are taken as they are."""
    for of_rank in told:
        said, found, checked = of_rank[loop, False]
        assert (said, found) == ("", [])
        assert checked >= 3


@pytest.mark.parametrize("loop", ["accelerated", "lightened"])
def test_broken_loops_are_stopped(told, loop):
    """A forward past the wrapper, a cast after it."""
    for of_rank in told:
        said = of_rank[loop, True][0]
        assert said.startswith("[gradients] after step 1")
        assert ("model.module(x)" if loop == "accelerated" else "cast after wrapping") in said
