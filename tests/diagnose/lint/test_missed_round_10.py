"""Forms that public scripts of the tenth round use, missed or misjudged at first: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import pytest

HEAD = """import argparse
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
PYTHON = {
    "a local rank by way of a parameter, beside the size of the job": HEAD
    + """
def setup(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)  #> local-rank-as-rank
    torch.cuda.set_device(rank)

def main():
    rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    setup(rank, world_size)
""",
    "a local rank beside the size of a machine": HEAD
    + """
def setup(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)

def main():
    setup(int(os.environ["LOCAL_RANK"]), torch.cuda.device_count())
""",
    "a model taken out of the wrap and saved whole": HEAD
    + """
def save(net, path):
    model = DDP(net)
    if dist.get_rank() == 0:
        inner = model.module if hasattr(model, "module") else model
        torch.save(inner, path)  #> save-whole-module
        torch.save(inner.state_dict(), path)
""",
    "a state that is chosen": HEAD
    + """
def save(net, several, path):
    if several:
        net = DDP(net)
    if dist.get_rank() == 0:
        torch.save({"net": net.module.state_dict() if several else net.state_dict()}, path)
""",
    "the global rank as a device, by its name only": HEAD
    + """
def main(net, optimizer, batches):
    dist.init_process_group("nccl")
    device = dist.get_rank()
    model = DDP(net.to(device))  #> global-rank-as-device
    for x in batches:
        model(x.to(device)).mean().backward()
        optimizer.step()
""",
    "the rank on its node as a device": HEAD
    + """
def main(net, optimizer, batches):
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    model = DDP(net.to(device))
    for x in batches:
        model(x.to(device)).mean().backward()
        optimizer.step()
""",
    "a name that is made of itself": HEAD
    + """
def main(net, device=None):
    dist.init_process_group("nccl")
    device = device if device is not None else net.device
    return net.to(device)
""",
    "ranks that are started by hand": HEAD
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl", rank=args.rank, world_size=2)
""",
}
SHELL = {
    "processes of all machines": """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
srun bash -c 'accelerate launch --num_processes=4 --num_machines=2 --machine_rank=$SLURM_NODEID train.py'
""",
}


@pytest.mark.parametrize("case", [*PYTHON, *SHELL])
def test_a_form_is_judged(judged, case):
    """What is marked is found, and nothing else is."""
    name, text = ("train.py", PYTHON[case]) if case in PYTHON else ("train.sh", SHELL[case])
    found, wanted = judged(text, name)
    assert found == wanted
