"""Forms that public scripts and job files use, missed or misjudged at first: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import pytest

HEAD = """import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
EVALUATION = (
    HEAD
    + """
def evaluate(model, loader):
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    return {}

def train(net, optimizer, batches, held_out, rank, stopper):
    model = DDP(net.cuda(rank), device_ids=[rank])
    loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    best = waited = 0
    for epoch in range(90):
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
"""
)
SHARE = "right / seen  #> evaluation-of-share"
PYTHON = {
    "patience that runs out on each rank for itself": EVALUATION.format(SHARE)
    + """
        accuracy = evaluate(model, loader)
        if accuracy > best:
            best, waited = accuracy, 0
        else:
            waited += 1
        if waited > 5:
            break  #> rank-dependent-exit
""",
    "a stopper that is given the number of this rank": EVALUATION.format(SHARE)
    + """
        stopper(evaluate(model, loader), model)
        if stopper.done:
            break  #> rank-dependent-exit
""",
    "patience that the ranks share": EVALUATION.format(SHARE)
    + """
        accuracy = evaluate(model, loader)
        waited = 0 if accuracy > best else waited + 1
        flag = torch.tensor(waited > 5).cuda(rank)
        dist.broadcast(flag, src=0)
        if flag.item():
            break
""",
    "patience with a number of all ranks": EVALUATION.format("total(right) / total(seen)").replace(
        "def evaluate",
        """def total(number):
    value = torch.tensor(number).cuda()
    dist.all_reduce(value)
    return value.item()

def evaluate""",
    )
    + """
        accuracy = evaluate(model, loader)
        waited = 0 if accuracy > best else waited + 1
        if waited > 5:
            break
""",
    "patience with another number of that evaluation": EVALUATION.split("def evaluate")[0]
    + """
def train(net, optimizer, batches, held_out, rank):
    model = DDP(net.cuda(rank), device_ids=[rank])
    loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    best = waited = 0
    for epoch in range(90):
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
        losses, right = [], []
        with torch.no_grad():
            for x, y in loader:
                losses.append(model(x).mean().item())
                right.append((model(x).argmax(1) == y).float().mean().item())
        print(sum(losses) / len(losses))  #> evaluation-of-share
        accuracy = sum(right) / len(right)
        if accuracy > best:
            best, waited = accuracy, 0
        else:
            waited += 1
        if waited > 5:
            break  #> rank-dependent-exit
""",
    "a path that is broadcast before a load on one rank": HEAD
    + """
def resume(net, rank, folder):
    paths = [folder]
    dist.broadcast_object_list(paths, src=0)
    model = DDP(net.cuda(rank), device_ids=[rank])
    if rank == 0:
        model.load_state_dict(torch.load(paths[0], map_location="cpu"))  #> load-on-one-rank
    return model
""",
    "a sampler that counts as the group does": HEAD
    + """
def load(data, args):
    size = torch.cuda.device_count()
    dist.init_process_group("nccl", rank=args.local_rank, world_size=size)
    sampler = DistributedSampler(data, num_replicas=size, rank=args.local_rank, shuffle=False)
    return DataLoader(data, sampler=sampler)
""",
    "a part of a library that is imported whole": "import apex\n"
    + HEAD
    + """
def prepare(net, optimizer):
    return apex.amp.initialize(net, optimizer)  #> deprecated-library
""",
    "a clock that is started again behind what waits": "import time\n"
    + HEAD
    + """
def train(net, optimizer, batches, rank):
    model = DDP(net.cuda(rank), device_ids=[rank])
    start = time.time()
    for step, x in enumerate(batches):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            spent = time.time() - start
            print(loss.item(), spent)
            start = time.time()
            print(loss.item())
""",
    "ranks that are spawned and meet on this machine": HEAD
    + """
def total(values):
    rank = dist.get_rank()
    value = torch.tensor(values).to(rank)
    dist.all_reduce(value)
    return value

def main(rank, size, values):
    dist.init_process_group("nccl", init_method="tcp://localhost:12345", rank=rank, world_size=size)
    print(total(values))

if __name__ == "__main__":
    mp.spawn(main, nprocs=4, args=(4, [1.0]))
""",
}
JOB = "#!/bin/bash\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node=1\n"
SHELL = {
    "nodes of Slurm and no address": JOB.format(2)
    + "export MASTER_ADDR=$(scontrol show hostnames | head -n 1)\n"
    + "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 train.py  #> no-rendezvous\n",
    "the address of the first node, and no node rank": JOB.format(2)
    + "srun torchrun --nnodes=2 --nproc_per_node=8 --master_addr=$HEAD train.py  #> same-node-rank\n"
    + "srun torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29500 train.py\n"
    + "srun -N1 torchrun --nnodes=2 --nproc_per_node=8 --master_addr=$HEAD train.py\n",
    "an old launcher in a variable": 'START="$PYTHON -m torch.distributed.launch --nproc_per_node=4"  '
    "#> deprecated-dist-api\n$START train.py\n",
    "one node of Slurm": JOB.format(1) + "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 train.py\n",
}


@pytest.mark.parametrize("case", [*PYTHON, *SHELL])
def test_a_form_is_judged(judged, case):
    """What is marked is found, and nothing else is."""
    name, text = ("train.py", PYTHON[case]) if case in PYTHON else ("train.sh", SHELL[case])
    found, wanted = judged(text, name)
    assert found == wanted
