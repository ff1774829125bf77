"""Trains a small model in float64; writes where it is after each step, and its parameters at the end."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.train import Hooks

HERE, SLOW_S = Path(sys.argv[1]), float(os.environ.get("STEP_S", "0"))


def step(model, batch):
    return nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"], reduction="none"), {}


def note(trainer, report):
    time.sleep(SLOW_S * (trainer.world.world_size > 1))  # until the test has killed one, in the midst
    if trainer.world.is_main:
        with (HERE / "steps").open("a") as file:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            file.write(f"{trainer.session.progressed.num_steps} {trainer.world.world_size} {attempt}\n")


with rankwise.bind(threads=1, timeout=200) as world:
    x = np.random.default_rng(0).normal(size=(120, 8))
    source = ArraySource({"x": x, "y": x.sum(1) ** 2})
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    trainer = rankwise.Trainer(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), step, hooks=Hooks(step_end=note), save_every=5
    )
    trainer.fit(SampleLoader(source, order=rankwise.Order(source, batch_size=10)), epochs=5)
    if world.is_main:
        torch.save(torch.cat([p.detach().flatten() for p in model.parameters()]), HERE / "end.pt")
        print("gloo on", os.environ.get("GLOO_SOCKET_IFNAME"), flush=True)
