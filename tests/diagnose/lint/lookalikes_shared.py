"""Correct programs that look like the wrong ones, for rules of what ranks share: draws, sums, steps, nodes."""

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
LOOK_ALIKES = {
    "RW115": HEAD + """
import os
import pickle

def load(path, make):
    dist.init_process_group("nccl")
    if dist.get_rank() != 0:
        dist.barrier()
    if not os.path.exists(path):
        with open(path, "wb") as file:
            pickle.dump(make(), file)
    if dist.get_rank() == 0:
        dist.barrier()
    if not os.path.exists("log"):
        os.makedirs("log")
    mine = f"part{dist.get_rank()}"
    if not os.path.exists(mine):
        torch.save(make(), mine)
""",
    "RW220": """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def prepare(net, head):
    heads = torch.optim.AdamW(head.parameters())
    size = sum(p.numel() for p in net.parameters())
    model = FSDP(net)
    return model, heads, torch.optim.AdamW(model.parameters()), size

def whole(net):
    optimizer = torch.optim.AdamW(net.parameters())
    return FSDP(net, use_orig_params=True), optimizer
""",
    "RW312": """
import deepspeed
import torch
from accelerate import Accelerator

def train(net, other, loader, config):
    engine, *_ = deepspeed.initialize(model=net, config=config)
    for x in loader:
        engine.backward(engine(x))
        engine.step()
        other(x).sum().backward()

def alone(net, loader):
    accelerator = Accelerator()
    print(accelerator.device)
    for x in loader:
        net(x).sum().backward()
""",
    "RW313": HEAD + """
def train(net, loader, optimizer, scheduler, env, progress, writer):
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        env.step(0)
        progress.step()
        writer.add_scalar("lr", scheduler.get_last_lr()[0])
        scheduler.step()
    else:
        scheduler.step()
""",
    "RW117": """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, RandomSampler

def main(data, held, model):
    accelerator = Accelerator()
    sampler = torch.utils.data.distributed.DistributedSampler(held, shuffle=False)
    held_loader = DataLoader(held, sampler=sampler)
    loader = DataLoader(data, sampler=RandomSampler(data))
    return accelerator.prepare(model, loader), held_loader
""",
    "RW314": HEAD + """
from torch.utils.data import DataLoader

def evaluate(model, held_out):
    correct = seen = 0
    with torch.no_grad():
        for x, y in DataLoader(held_out):
            correct += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    return correct / seen

def train(net, data, optimizer):
    model = DDP(net)
    loader = DataLoader(data, sampler=torch.utils.data.distributed.DistributedSampler(data, shuffle=False))
    loss_sum = seen = 0
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
    return loss_sum / len(loader)
""",
    "RW315": """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, head, other):
    model, heads = FSDP(net), DDP(head)
    torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
    fully_shard(other)
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    return model.clip_grad_norm_(1.0)
""",
    "RW410": HEAD + """
def train(batches):
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches:
        net(x).sum().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
""",
    "RW617": """#!/bin/bash
#SBATCH --nodes=2
srun bash -c 'torchrun --nnodes 2 --node-rank $SLURM_NODEID --master-addr $HEAD train.py'
for i in 0 1; do
    srun --nodes=1 -w ${HOSTS[$i]} torchrun --nnodes 2 --node-rank $i --master-addr $HEAD train.py &
done
srun torchrun --nnodes 2 --node-rank 0 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py
torchrun --nnodes 2 --node-rank 0 --master-addr $HEAD train.py
""",
    "RW618": """
export MASTER_ADDR=localhost
torchrun --nnodes 1 --nproc-per-node 8 --master-addr $MASTER_ADDR train.py
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py
""",
    "RW621": """#!/bin/bash
#SBATCH --nodes=2
for host in $HOSTS; do
    ssh $host torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py
done
""",
    "RW507": HEAD + """
from torch.distributed.fsdp import fully_shard

def save(net, other, path):
    fully_shard(net)
    torch.save(net.state_dict(), f"{path}.{dist.get_rank()}")
    if dist.get_rank() == 0:
        torch.save(other.state_dict(), path)
""",
}  # fmt: skip
