"""Forms that public scripts of the eleventh round use, missed or misjudged at first: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import pytest

HEAD = """import argparse
import os
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from torchvision import datasets
from torchvision.utils import save_image
"""
PYTHON = {
    "what all ranks of DeepSpeed write": HEAD
    + """
import deepspeed

def train(args, net, sampler, data):
    writer = SummaryWriter(args.logs)  #> tracker-on-all-ranks
    engine, *_ = deepspeed.initialize(args=args, model=net)
    for step, x in enumerate(DataLoader(data, sampler=sampler)):
        loss = engine(x).mean()
        engine.backward(loss)
        engine.step()
        writer.add_scalar("loss", loss.item(), step)
        save_image(x, f"{args.out}/{step}.png")  #> save-on-all-ranks

def main(args, net, sampler, data):
    train(args, net, sampler, data)
""",
    "what the main rank of DeepSpeed writes, and pictures that are named by the samples": HEAD
    + """
import deepspeed

def train(args, net, sampler, data):
    writer = SummaryWriter(args.logs) if dist.get_rank() == 0 else None
    engine, *_ = deepspeed.initialize(args=args, model=net)
    for step, (x, name) in enumerate(DataLoader(data, sampler=sampler)):
        loss = engine(x).mean()
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            writer.add_scalar("loss", loss.item(), step)
        save_image(x, f"{args.out}/{name[0]}.png")

def main(args, net, sampler, data):
    train(args, net, sampler, data)
""",
    "a writer behind an option, and data that are fetched at the top": HEAD
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--no-tensorboard", action="store_true")
args = parser.parse_args()

if __name__ == "__main__":
    dist.init_process_group("nccl")
    data = datasets.MNIST("data", download=True)  #> prepared-by-all
    if not args.no_tensorboard:
        writer = SummaryWriter("runs")  #> tracker-on-all-ranks
        writer.add_scalar("start", 1, 0)
""",
    "a writer behind an option that the script sets, and data of one rank": HEAD
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--tensorboard", action="store_true")
args = parser.parse_args()

if __name__ == "__main__":
    dist.init_process_group("nccl")
    args.tensorboard = args.tensorboard and dist.get_rank() == 0
    if dist.get_rank() == 0:
        datasets.MNIST("data", download=True)
    dist.barrier()
    if args.tensorboard:
        writer = SummaryWriter("runs")
        writer.add_scalar("start", 1, 0)
""",
    "runs of neptune": HEAD
    + """
import neptune.new as neptune

def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    return neptune.init_run(project="p", monitoring_namespace=f"monitoring/{rank}")  #> tracker-on-all-ranks
""",
    "one run of neptune": HEAD
    + """
import neptune

def main(name):
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    return neptune.init_run(project="p", custom_run_id=name, monitoring_namespace=f"monitoring/{rank}")
""",
    "one save is guarded and the next is not": HEAD
    + """
from engines import Engine

def main(net, best, score):
    with Engine() as engine:
        if engine.distributed:
            net = DDP(net, device_ids=[engine.local_rank])
        if not engine.distributed or engine.local_rank == 0:
            engine.save_checkpoint("last.pt")
        if score > best:
            engine.save_best("best.pt")  #> save-on-all-ranks
""",
    "both saves are guarded": HEAD
    + """
from engines import Engine

def main(net, best, score):
    with Engine() as engine:
        if engine.distributed:
            net = DDP(net, device_ids=[engine.local_rank])
        if not engine.distributed or engine.local_rank == 0:
            engine.save_checkpoint("last.pt")
            if score > best:
                engine.save_best("best.pt")
""",
    "the plain model is trained": HEAD
    + """
def fit(net, batches, optimizer):
    for x in batches:
        net(x).mean().backward()
        optimizer.step()

def main(net, batches, rank):
    model = net.cuda(rank)
    ddp_model = DDP(model, device_ids=[rank])
    fit(model, batches, torch.optim.SGD(ddp_model.parameters()))  #> module-forward
""",
    "the plain model is looked at": HEAD
    + """
def fit(net, batches, optimizer):
    for x in batches:
        net(x).mean().backward()
        optimizer.step()

def main(net, batches, rank):
    model = net.cuda(rank)
    ddp_model = DDP(model, device_ids=[rank])
    fit(ddp_model, batches, torch.optim.SGD(model.parameters()))
    fit(model, batches[:1], None)
""",
    "the start of the epochs is told": HEAD
    + """
class Trainer:
    def run_epoch(self, epoch):
        self.loader.sampler.set_epoch(self.epoch)  #> missing-set-epoch
        for x in self.loader:
            self.net(x).mean().backward()
            self.optimizer.step()

    def fit(self):
        for epoch in range(self.epoch, self.epochs):
            self.run_epoch(epoch)
""",
    "the start of the epochs moves on": HEAD
    + """
class Trainer:
    def run_epoch(self, epoch):
        self.loader.sampler.set_epoch(self.epoch)
        for x in self.loader:
            self.net(x).mean().backward()
            self.optimizer.step()
        self.epoch += 1

    def fit(self):
        for epoch in range(self.epoch, self.epochs):
            self.run_epoch(epoch)
""",
    "a local rank from the command line that another file starts the group with": HEAD
    + """
from starts import setup

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)  #> local-rank-argparse
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
setup(args.local_rank)
""",
    "a local rank that another file may replace": HEAD
    + """
from starts import setup

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
setup(args)
torch.cuda.set_device(args.local_rank)
""",
    "shares of nodes that begin at an offset": HEAD
    + """
from batches import Loader

def work(local_rank, args):
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", rank=args.start + local_rank, world_size=args.world_size)
    first = Loader(args.path, rank=local_rank, num_replicas=args.world_size)  #> local-rank-shard
    return first, Loader(args.path, rank=dist.get_rank(), num_replicas=args.world_size)
""",
    "a context that nobody enters": HEAD
    + """
def setup():
    torch.accelerator.device_index(int(os.environ["LOCAL_RANK"]))  #> no-set-device
    dist.init_process_group("nccl")
""",
    "a context that is entered": HEAD
    + """
def setup(make):
    dist.init_process_group("nccl")
    with torch.accelerator.device_index(int(os.environ["LOCAL_RANK"])):
        return make()
""",
    "means that a loop adds up, and whole percents": HEAD
    + """
def evaluate(net, held, show):
    loader = DataLoader(held, sampler=DistributedSampler(held, shuffle=False))
    mean_loss = 0
    with torch.no_grad():
        for x, y in loader:
            mean_loss += nn.functional.cross_entropy(net(x), y) / len(loader)  #> evaluation-of-share
    show(mean_loss)

def accuracy(net, held):
    loader = DataLoader(held, sampler=DistributedSampler(held, shuffle=False))
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            right += (net(x).argmax(1) == y).sum().item()
            seen += len(y)
    print(100 * right // seen)  #> evaluation-of-share
""",
    "means that a loop adds up, and all ranks": HEAD
    + """
def evaluate(net, held, show):
    loader = DataLoader(held, sampler=DistributedSampler(held, shuffle=False))
    mean_loss = torch.zeros(())
    with torch.no_grad():
        for x, y in loader:
            mean_loss += nn.functional.cross_entropy(net(x), y) / len(loader)
    dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
    show(mean_loss)
""",
    "layers without buffers on one rank": HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.BatchNorm1d(3)

def main(x, rank):
    model = Net().to(rank)
    model = DDP(model, device_ids=[rank])
    normed = Normed().to(rank)
    normed = DDP(normed, device_ids=[rank])
    if dist.get_rank() == 0:
        model(x)
        normed(x)  #> wrapped-forward-on-one-rank
""",
    "a clock that nobody reads, and one that somebody does": HEAD
    + """
def silent(net, batches, rank, optimizer):
    model = DDP(net.cuda(rank))
    for x in batches:
        start = time.time()
        loss = model(x).mean()
        print(loss.item())
        loss.backward()
        cost = time.time() - start
        optimizer.step()

def told(net, batches, rank, optimizer):
    model = DDP(net.cuda(rank))
    for x in batches:
        start = time.time()
        loss = model(x).mean()
        print(loss.item())
        loss.backward()
        cost = time.time() - start  #> timing-without-sync
        optimizer.step()
        print(cost)
""",
    "a name that means a plain model again": HEAD
    + """
def train(make, batches, rank, optimizer, accumulation_steps):
    model = DDP(make(), device_ids=[rank])
    model = make()
    for i, x in enumerate(batches):
        model(x).mean().backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
""",
}
JOB = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks={}\n"
SHELL = {
    "ranks that the batch shell replaces": JOB.format(4)
    + 'srun python ddp.py --rank="$SLURM_PROCID" --size $SLURM_NTASKS  #> same-node-rank\n',
    "ranks that a shell on each node replaces": JOB.format(4)
    + "srun bash -c 'python ddp.py --rank=$SLURM_PROCID'\n"
    + "srun -N1 -n1 python report.py --rank $SLURM_PROCID\n"
    + "srun --output=log.$SLURM_NODEID python ddp.py --job $SLURM_JOB_ID\n",
    "nodes that are given, beside --standalone": "nodes=$1\n"
    "job=$(qsub -b yes torchrun --standalone --nnodes=$nodes --nproc_per_node=2 train.py)  #> no-rendezvous\n"
    "torchrun --standalone --nnodes=1 --nproc_per_node=$1 train.py\n"
    "torchrun --nnodes=$nodes --rdzv_endpoint=$HEAD:29500 --nproc_per_node=2 train.py\n",
}


@pytest.mark.parametrize("case", [*PYTHON, *SHELL])
def test_a_form_is_judged(judged, case):
    """What is marked is found, and nothing else is."""
    name, text = ("train.py", PYTHON[case]) if case in PYTHON else ("train.sh", SHELL[case])
    found, wanted = judged(text, name)
    assert found == wanted
