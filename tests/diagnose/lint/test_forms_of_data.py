"""Mistakes with data and evaluation in the forms of long scripts, each beside one that is right. All invented.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import re

import pytest

HEAD = """import os
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
"""
SHARED = (
    HEAD
    + """
def loaders(train, held, distributed):
    if distributed:
        val_sampler = DistributedSampler(held, shuffle=False)
    else:
        val_sampler = None
    return DataLoader(train, sampler=DistributedSampler(train, shuffle=False)), DataLoader(held, sampler=val_sampler)
"""
)
METER = (
    SHARED
    + """
class AverageMeter:
    def __init__(self):
        self.sum = self.count = self.avg = 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n
        self.avg = self.sum / self.count

def validate(model, loader):
    top1 = AverageMeter()
    with torch.no_grad():
        for x, y in loader:
            top1.update((model(x).argmax(1) == y).float().mean().item(), len(y))
    return top1.avg  #> evaluation-of-share

def main(net, train, held):
    train_loader, val_loader = loaders(train, held, True)
    return validate(net, val_loader)
"""
)
DICT_OF_LOADERS = (
    HEAD
    + """
def build(sets):
    loaders = {}
    for split, data in sets.items():
        sampler = DistributedSampler(data, shuffle=split == "train")  #> missing-set-epoch
        loaders[split] = DataLoader(data, sampler=sampler)
    return loaders

class Trainer:
    def __init__(self, net, loaders):
        self.model, self.loaders = DDP(net), loaders

    def fit(self, optimizer):
        for epoch in range(9):
            for x in self.loaders["train"]:
                self.model(x).sum().backward()
                optimizer.step()

def main(net, sets):
    return Trainer(net, build(sets))
"""
)
TOLD_ABOVE = (
    HEAD
    + """
def main(net, data, optimizer):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
    model = DDP(net)
    sampler.set_epoch(0)  #> missing-set-epoch
    for epoch in range(9):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
"""
)
TOLD_ON_ONE = TOLD_ABOVE.replace("    sampler.set_epoch(0)  #> missing-set-epoch\n", "").replace(
    "range(9):\n",
    "range(9):\n        if dist.get_rank() == 0:\n            sampler.set_epoch(epoch)  #> step-on-one-rank\n",
)
OWN_STREAM = (
    HEAD
    + """
class Files(torch.utils.data.IterableDataset):
    def mine(self, files):
        return files

class Lines(Files):
    def __init__(self, files, seed):
        self.files = self.mine(files)

    def __iter__(self):
        yield from self.files

def main(net, files, optimizer):
    seed = 1 + 2
    loader = DataLoader(Lines(files, seed))  #> iterable-unsharded
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
"""
)
IN_LIGHTNING = """import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset

class Lines(IterableDataset):
    def __iter__(self):
        yield from open("lines.txt")

def main(module):
    trainer = L.Trainer(devices=8, strategy="ddp")
    trainer.fit(module, DataLoader(Lines(), batch_size=8))  #> iterable-unsharded
"""
IN_THE_PLACE_OF_SHUFFLE = TOLD_ABOVE.replace("  #> missing-set-epoch", "").replace(
    "DataLoader(data, sampler=sampler)", "DataLoader(data, 8, sampler)  #> missing-sampler"
)
FABRIC = """import lightning as L
import torch
from torch.utils.data import DataLoader

def main(net, data, optimizer):
    fabric = L.Fabric(devices=4, strategy="ddp")
    model, optimizer = fabric.setup(net, optimizer)
    loader = DataLoader(data, batch_size=8, shuffle=True)  #> missing-sampler
    for x in loader:
        fabric.backward(model(x).sum())
        optimizer.step()
"""
ACCELERATED = """import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, DistributedSampler

class Learner:
    def __init__(self, net, data, held):
        self.accelerator = Accelerator()
        sampler = DistributedSampler(data) if self.accelerator.num_processes > 1 else None
        loader = DataLoader(data, batch_size=8, sampler=sampler)
        self.model, self.loader = self.accelerator.prepare(net, loader)  #> sharded-twice
"""
OPTION_OF_A_DICT = (
    HEAD
    + """
def main(net, data, config):
    model = DDP(net)
    loader = DataLoader(data, config["global_batch_size"], sampler=DistributedSampler(data))  #> global-batch-per-rank
    return model, loader
"""
)


def right(text, *changes):
    """Return a case without its mistakes, with some of its words changed."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return re.sub(r"  #>[^\n]*", "", text)


_MARK = "  #> missing-set-epoch\n"
DOWNLOAD = (
    HEAD
    + """
from torchvision.datasets import MNIST

def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    return MNIST("x", download=rank == 0)  #> save-without-barrier
"""
)
DOWNLOAD_FIRST = DOWNLOAD.replace(
    '    return MNIST("x", download=rank == 0)',
    '    if rank == 0:\n        MNIST("x", download=True)\n    return MNIST("x", download=False)',
)
CASES = {
    "a meter of a share": METER,
    "a meter that is added up": right(
        METER,
        ("    return top1.avg", "    top1.share()\n    return top1.avg"),
        (
            "\ndef validate",
            "\n    def share(self):\n        total = torch.ones(1)\n        dist.all_reduce(total)\n\ndef validate",
        ),
    ),
    "a sampler for the part that trains only": right(
        METER,
        ("if distributed:", 'if held.part == "train":'),
        ("sampler=val_sampler", "sampler=val_sampler, shuffle=False"),
    ),
    "a dict of loaders": DICT_OF_LOADERS,
    "a dict of loaders, told": right(
        DICT_OF_LOADERS,
        ("            for x in", '            self.loaders["train"].sampler.set_epoch(epoch)\n            for x in'),
    ),
    "none of them shuffles": right(DICT_OF_LOADERS, ('split == "train"', "False")),
    "told once above the loop": TOLD_ABOVE,
    "told once for one pass": right(TOLD_ABOVE, ("    for epoch in range(9):\n", "    for epoch in range(1):\n")),
    "told on the main rank": TOLD_ON_ONE,
    "told by the data set's own epoch": TOLD_ABOVE.replace(_MARK, "\n")
    .replace("    sampler.set_epoch(0)\n", "")
    .replace("range(9):\n", "range(9):\n        data_set.set_epoch(epoch)\n")
    .replace("DistributedSampler(data)", "DistributedSampler(data)  #> missing-set-epoch"),
    "a stream of this file": OWN_STREAM,
    "a stream that its base divides": right(OWN_STREAM, ("return files", "return files[dist.get_rank() :: 8]")),
    "a stream by a number of this rank": right(OWN_STREAM, ("seed = 1 + 2", "seed = dist.get_rank()")),
    "a stream in Lightning": IN_LIGHTNING,
    "a stream in Lightning by rank": right(IN_LIGHTNING, ('open("lines.txt")', "open(f'lines{self.rank}.txt')")),
    "a sampler in the place of shuffle": IN_THE_PLACE_OF_SHUFFLE.replace("set_epoch(0)", "set_epoch(net.epoch)"),
    "a loader that Fabric does not get": FABRIC,
    "a loader that Fabric gets": right(
        FABRIC, ("    for x", "    loader = fabric.setup_dataloaders(loader)\n    for x")
    ),
    "Fabric on one device": right(FABRIC, ("devices=4", "devices=1")),
    "a sampler, and Accelerate": ACCELERATED,
    "a sampler that Accelerate does not get": right(ACCELERATED, ("prepare(net, loader)", "prepare(net), loader")),
    "an option of a dict": OPTION_OF_A_DICT,
    "an option of a dict, divided": right(
        OPTION_OF_A_DICT, ("    model =", '    config["global_batch_size"] //= dist.get_world_size()\n    model =')
    ),
    "a download by one": DOWNLOAD,
    "a download by one, and no barrier": DOWNLOAD_FIRST,
    "a download in turn": right(
        DOWNLOAD,
        ("    return", "    if rank != 0:\n        dist.barrier()\n    data ="),
        ("rank == 0)", "rank == 0)\n    if rank == 0:\n        dist.barrier()\n    return data"),
    ),
    "a download and a barrier": right(DOWNLOAD_FIRST, ("    return", "    dist.barrier()\n    return")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_form_is_judged(judged, case):
    """What is marked is found, and nothing else is."""
    found, marked = judged(CASES[case])
    assert found == marked
