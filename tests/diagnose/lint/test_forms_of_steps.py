"""Steps and loads in other clothes: clipping and accumulation across methods, where a load puts its tensors.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected. All invented.
"""

from __future__ import annotations

import pytest

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SCRIPTS = {
    "clipping in another method than the scaled backward": """
class Engine:
    def __init__(self, net, optimizer, every):
        self.model = DDP(net)
        self.optimizer, self.every = optimizer, every
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x, index):
        loss = self.model(x).sum()
        self.scaler.scale(loss / self.every).backward()  #> accumulation-without-no-sync
        if (index + 1) % self.every == 0:
            self.take_step()

    def take_step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  #> clip-before-unscale
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, loader):
        for index, x in enumerate(loader):
            self.step(x, index)
""",
    "unscaled in another method": """
class Engine:
    def __init__(self, net, optimizer):
        self.model = DDP(net)
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x):
        loss = self.model(x).sum()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.take_step()

    def take_step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
""",
    "an inner loop of micro-batches": """
def train(net, draw, optimizer, steps, parts):
    model = DDP(net)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            loss = model(draw()).sum() / parts
            loss.backward()  #> accumulation-without-no-sync
        optimizer.step()
""",
    "an inner loop of steps": """
def train(net, draw, optimizer, steps, parts):
    model = DDP(net)
    for step in range(steps):
        for part in range(parts):
            optimizer.zero_grad()
            loss = model(draw()).sum() / steps
            loss.backward()
            optimizer.step()
""",
    "gradients of the model zeroed": """
def train(net, loader, optimizer):
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
        model.zero_grad()  #> step-order
        optimizer.step()
""",
    "gradients of the other model zeroed": """
def train(net, critic, loader, optimizer, judge):
    net, critic = DDP(net), DDP(critic)
    for x in loader:
        critic(net(x)).sum().backward()
        critic.zero_grad()
        optimizer.step()
        net.zero_grad()
        critic(x).sum().backward()
        net.zero_grad()
        judge.step()
        critic.zero_grad()
""",
    "one GPU by a variable": """
def main(net, path, rank):
    torch.cuda.set_device(rank)
    place = "cuda:0"
    first = torch.load(path, map_location=place)  #> load-without-map-location
    net.load_state_dict(first)
    return DDP(net.cuda(rank), device_ids=[rank])
""",
    "a loader that Fabric gets where it is made": """
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

def main(net, data, optimizer):
    fabric = Fabric(devices=4, strategy="ddp")
    model, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8, shuffle=True))
    for x in loader:
        fabric.backward(model(x).sum())
        optimizer.step()
""",
    "the GPU of this rank": """
def main(net, path, rank):
    torch.cuda.set_device(rank)
    place = "cuda"
    first = torch.load(path, map_location=place)
    second = torch.load(path, map_location=lambda storage, where: storage)
    third = torch.load(path, map_location=lambda storage, where: storage.cuda(rank))
    net.load_state_dict(first)
    return DDP(net.cuda(rank), device_ids=[rank]), second, third
""",
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_form_is_judged(judged, case):
    """What is marked is found, and nothing else is."""
    text = HEAD + SCRIPTS[case]
    found, wanted = judged(text)
    assert found == wanted
