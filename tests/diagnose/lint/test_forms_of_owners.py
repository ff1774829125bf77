"""Whose a thing is: models that a library wraps or shards, what one rank loads by a method, streams, starts of ranks.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected. All invented.
"""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source, source_from_text

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
ACCELERATED = """
import torch
from accelerate import Accelerator

def main(net, optimizer, batches, folder):
    accelerator = Accelerator()
    net, optimizer, batches = accelerator.prepare(net, optimizer, batches)
    for x in batches:
        net.train()
        accelerator.backward(net(x).mean())
        optimizer.step()
        optimizer.zero_grad()
"""
MODELS = {
    "a prepared model saved": ACCELERATED
    + """
    if accelerator.is_main_process:
        net.save_pretrained(folder)  #> attribute-of-wrapped
""",
    "a prepared model asked": ACCELERATED
    + """
    print(net.config.hidden_size, optimizer.defaults, batches.dataset)  #> attribute-of-wrapped
    text = net.generate(x)  #> attribute-of-wrapped
""",
    "a prepared model unwrapped": ACCELERATED
    + """
    plain = accelerator.unwrap_model(net)
    if accelerator.is_main_process:
        plain.save_pretrained(folder)
    net = accelerator.unwrap_model(net)
    print(net.config, net.training)
""",
    "an engine that hands attributes on": ACCELERATED.replace(
        "import Accelerator", "import Accelerator, DeepSpeedPlugin"
    )
    + """
    print(net.config)
""",
    "asked before it is prepared": """
import torch
from accelerate import Accelerator

def main(net, batches):
    accelerator = Accelerator()
    width = net.config.hidden_size
    net = accelerator.prepare(net)
    net.eval()
    return width
""",
    "a layer of a list replaced": HEAD
    + """
def build(net):
    model = DDP(net)
    model.module.head[1] = torch.nn.Linear(8, 2)  #> params-after-wrap
""",
    "a layer further inside": HEAD
    + """
def build(net, device):
    model = DDP(net)
    model.module.trunk.head = torch.nn.Sequential(torch.nn.Linear(8, 2)).to(device)  #> params-after-wrap
""",
    "a layer added to a list": HEAD
    + """
def build(net):
    model = DDP(net)
    model.module.layers.append(torch.nn.Linear(8, 2))  #> params-after-wrap
    model.module.trunk.add_module("last", torch.nn.Linear(8, 2))  #> params-after-wrap
""",
    "a layer set by its name": HEAD
    + """
def build(net, name):
    model = DDP(net)
    setattr(model.module, name, torch.nn.Linear(8, 2))  #> params-after-wrap
""",
    "layers replaced first, and losses": HEAD
    + """
def build(net, probe):
    net.head[1] = torch.nn.Linear(8, 2)
    net.layers.append(torch.nn.Linear(8, 2))
    model = DDP(net)
    model.module.loss = torch.nn.CrossEntropyLoss()
    probe.head = torch.nn.Linear(8, 2)
    model.module.scale[0] = torch.ones(3)
""",
}
SHARDS = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard

class Engine:
    def __init__(self, net, rank):
        self.rank = rank
        self._shard(net)

    def _shard(self, net):
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
        self.net = net
"""
)
STATES = {
    "shards saved in another method": SHARDS
    + """
    def keep(self, path):
        if self.rank == 0:
            torch.save(self.net.state_dict(), path)  #> shards-of-one-rank
""",
    "a state made on all ranks, and saved on one": SHARDS
    + """
    def keep(self, path):
        state = {"net": self.net.state_dict()}  #> shards-of-one-rank
        if self.rank == 0:
            torch.save(state, path)
""",
    "shards in a function, saved by its caller": HEAD
    + """
from torch.distributed.fsdp import fully_shard

def shard(model):
    fully_shard(model)

def keep(net, path):
    torch.save(net.state_dict(), path)  #> shards-of-one-rank

def main(net, path):
    shard(net)
    if dist.get_rank() == 0:
        keep(net, path)
""",
    "shards that every rank saves, and another model": SHARDS
    + """
    def keep(self, path, plain):
        torch.save(self.net.state_dict(), f"{path}/{self.rank}.pt")
        if self.rank == 0:
            torch.save(plain.state_dict(), path)
""",
    "loaded by a method that one rank calls": HEAD
    + """
class Engine:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = DDP(net), optimizer

    def restore(self, path):
        saved = torch.load(path, map_location="cpu")
        self.net.module.load_state_dict(saved["net"])
        self.optimizer.load_state_dict(saved["optimizer"])

    def run(self, path):
        if dist.get_rank() == 0 and path:
            self.restore(path)  #> load-on-one-rank
        dist.barrier()
        return self.net
""",
    "an optimizer loaded by a function": HEAD
    + """
def restore(optimizer, path):
    optimizer.load_state_dict(torch.load(path, map_location="cpu"))

def main(net, optimizer, path, rank):
    model = DDP(net)
    if rank == 0:
        restore(optimizer, path)  #> load-on-one-rank
    return model
""",
    "loaded before the wrap, or by all": HEAD
    + """
class Engine:
    def __init__(self, net, path, rank):
        self.net = net
        if rank == 0:
            self.restore(path)
        self.net = DDP(self.net)

    def restore(self, path):
        self.net.load_state_dict(torch.load(path, map_location="cpu"))

class Other:
    def __init__(self, net):
        self.net = DDP(net)

    def restore(self, path):
        self.net.module.load_state_dict(torch.load(path, map_location="cpu"))

    def run(self, path, rank):
        self.restore(path)
        if rank == 0:
            print(path)
""",
}
STREAM = (
    HEAD
    + """
from torch.utils.data import DataLoader, IterableDataset

class Part:
    def __init__(self):
        self.index, self.count = dist.get_rank(), dist.get_world_size()

def of_mine(files):
    return files[int(os.environ["RANK"])::int(os.environ["WORLD_SIZE"])]

class Lines(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        {}
"""
)
STREAMS = {
    "by an object of this file": STREAM.format("part = Part(); yield from self.files[part.index::part.count]")
    + """
def main(net, files):
    return DDP(net), DataLoader(Lines(files))
""",
    "by a function of this file": STREAM.format("yield from of_mine(self.files)")
    + """
def main(net, files):
    return DDP(net), DataLoader(Lines(files))
""",
    "by nothing": STREAM.format("yield from self.files")
    + """
def main(net, files):
    return DDP(net), DataLoader(Lines(files))  #> iterable-unsharded
""",
    "read on one rank alone": STREAM.format("yield from self.files")
    + """
def main(net, files):
    model = DDP(net)
    if dist.get_rank() == 0:
        for x in DataLoader(Lines(files)):
            model.module(x)
""",
    "the loader of MONAI": HEAD
    + """
from monai.data import CacheDataset, DataLoader

def main(net, files, steps, optimizer):
    model = DDP(net)
    for x in DataLoader(CacheDataset(files, steps), batch_size=2, shuffle=True):  #> missing-sampler
        model(x["image"]).mean().backward()
        optimizer.step()
""",
    "the loader of PyG, with a sampler and without": HEAD
    + """
from torch_geometric.loader import DataLoader
from torch.utils.data import DistributedSampler

def main(net, graphs, optimizer):
    model = DDP(net)
    sampler = DistributedSampler(graphs)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x in DataLoader(graphs, sampler=sampler):
            model(x).mean().backward()
            optimizer.step()
""",
    "parts of the data by MONAI": HEAD
    + """
from monai.data import CacheDataset, DataLoader, partition_dataset

def main(net, files, steps, optimizer):
    model = DDP(net)
    mine = partition_dataset(files, num_partitions=dist.get_world_size())[dist.get_rank()]
    for x in DataLoader(CacheDataset(mine, steps), batch_size=2, shuffle=True):
        model(x["image"]).mean().backward()
        optimizer.step()
""",
    "no group in a program": """
import os
import torch
import pandas as pd
from torch.nn.parallel import DistributedDataParallel as DDP

LOCAL = int(os.environ["LOCAL_RANK"])

def main():
    torch.cuda.set_device(LOCAL)
    model = DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[LOCAL])  #> missing-init

if __name__ == "__main__":
    main()
""",
    "a function that others call": """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def wrapped(net):
    return DDP(net)
""",
    "a group that another file may start": """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from common import prepare

def main(net):
    prepare()
    return DDP(net)

if __name__ == "__main__":
    main(torch.nn.Linear(1, 1))
""",
    "cells behind the ranks": """
import torch
from accelerate import Accelerator, notebook_launcher

def work():
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(1, 1))
    net.load_state_dict(torch.load("a.pt", map_location="cuda:0"))  #> load-without-map-location

notebook_launcher(work, num_processes=2)
net = torch.nn.Linear(1, 1)
net.load_state_dict(torch.load("a.pt", map_location="cuda:0"))
""",
    "an object that judges, asked for a value": HEAD
    + """
from torch.utils.data import DataLoader, DistributedSampler

def judge(model, held_out):
    model.eval()
    batches = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    errors = sum(model(x).item() for x in batches)
    for x in batches:
        errors += model(x).item()
    return errors

def main(net, data, held_out, optimizer, stopper):
    model = DDP(net)
    for epoch in range(9):
        for x in data:
            model(x).mean().backward()
            optimizer.step()
        error = judge(model, held_out)
        better = stopper.step(error)
        if stopper.done:
            break  #> rank-dependent-exit
""",
}
CASES = {**MODELS, **STATES, **STREAMS}


@pytest.mark.parametrize("name", CASES)
def test_whose_it_is(name, judged):
    """The marked lines are found, and no others."""
    found, wanted = judged(CASES[name])
    assert found == wanted


JOB = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("srun torchrun --nproc_per_node=8 train.py\n", ["no-rendezvous"]),
        (
            "srun --container-image=a.sqsh \\\n  python -m torch.distributed.run --nproc-per-node 8 train.py\n",
            ["no-rendezvous"],
        ),
        ("srun bash -c 'torchrun --nproc_per_node=8 train.py'\n", ["no-rendezvous"]),
        ("srun torchrun --nnodes 4 --nproc_per_node=8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py\n", []),
        ("srun -N 1 -n 1 torchrun --nproc_per_node=8 train.py\n", []),
        ("for node in $NODES; do srun -w $node torchrun --nproc_per_node=8 train.py --fold $i & done\n", []),
        ("srun torchrun --standalone --nproc_per_node=8 train.py\n", []),
    ],
)
def test_a_launcher_on_each_node_that_knows_of_no_other(text, wanted):
    """Srun starts it on every node of the job, and each trains alone."""
    assert [found.rule.slug for found in check_source(source_from_text(JOB + text, "run.sh"))] == wanted
