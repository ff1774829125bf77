"""Numbers and layers by way of something: options, lists of gradients, functions, variables of the shell.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected. All invented.
"""

from __future__ import annotations

import pytest

HEAD = """
import time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
LAYERS = {
    "a function that grows the model": """
def widen(net, size):
    old = net.head
    new = nn.Linear(old.in_features, size).to(old.weight.device)
    net.head = new

def main(net):
    model = DDP(net)
    widen(model.module, 20)  #> params-after-wrap
    return model
""",
    "a method that grows the model": """
class Job:
    def __init__(self, net):
        self.net = DDP(net)

    def widen(self, net, size):
        net.head = nn.Linear(8, size)

    def main(self):
        self.widen(self.net.module, 20)  #> params-after-wrap
""",
    "grown before, and wrapped again": """
def widen(net, size):
    net.head = nn.Linear(8, size)

def main(net):
    widen(net, 10)
    model = DDP(net)
    widen(model.module, 20)
    model = DDP(model.module)
    return model
""",
    "something else is set": """
def note(net, size):
    net.size = size
    net.loss = nn.CrossEntropyLoss()

def main(net):
    model = DDP(net)
    note(model.module, 20)
    return model
""",
}
STEPS = {
    "an option that is called accumulate": """
def fit(net, batches, optimizer, cfg):
    net = DDP(net)
    for i, x in enumerate(batches):
        loss = net(x).mean() / cfg.accumulate
        loss.backward()  #> accumulation-without-no-sync
        if (i + 1) % cfg.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a metric that accumulates": """
def fit(net, batches, optimizer, accum, table):
    net = DDP(net)
    for i, x in enumerate(batches):
        (net(x).mean() / accum).backward()  #> accumulation-without-no-sync
        if (i + 1) % accum == 0:
            optimizer.step()
            optimizer.zero_grad()
    table.accumulate()
""",
    "the rate is scaled by the batch": """
def main(net, data, sampler, opts):
    net = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * opts.total_batch / 256)
    return DataLoader(data, batch_size=opts.total_batch, sampler=sampler)  #> global-batch-per-rank
""",
    "the rate is scaled above": """
def main(net, data, sampler, total_batch_size):
    net = DDP(net)
    base_lr = 0.1 * total_batch_size / 256.0
    return DataLoader(data, total_batch_size, sampler=sampler), base_lr  #> global-batch-per-rank
""",
    "each rank's part is taken": """
def main(net, data, sampler, opts):
    net = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * opts.total_batch / 256)
    opts.total_batch = opts.total_batch // dist.get_world_size()
    return DataLoader(data, batch_size=opts.total_batch, sampler=sampler)
""",
    "the model behind the wrap is measured": """
class Job:
    def __init__(self, net):
        self.net = DDP(net.cuda())

    def bench(self, batches):
        begin = time.perf_counter()
        for x in batches:
            self.net.module(x)
        return time.perf_counter() - begin  #> timing-without-sync

    def bench_well(self, batches):
        begin = time.perf_counter()
        for x in batches:
            self.net.module(x)
        torch.cuda.synchronize()
        return time.perf_counter() - begin
""",
    "gradients joined to one": """
def share(net):
    flat = torch.cat([p.grad.view(-1) for p in net.parameters()])
    dist.all_reduce(flat)
    return flat

def main(batches):
    dist.init_process_group("gloo")
    net = nn.Linear(8, 1)  #> weights-start-apart
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches:
        net(x).mean().backward()
        share(net)
        optimizer.step()
""",
    "gradients listed, then joined": """
from torch._utils import _flatten_dense_tensors

def main(batches):
    dist.init_process_group("gloo")
    net = nn.Linear(8, 1)  #> weights-start-apart
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches:
        net(x).mean().backward()
        grads = [p.grad.data for p in net.parameters()]
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        optimizer.step()
""",
    "a norm of gradients": """
def main(batches):
    dist.init_process_group("gloo")
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches:
        net(x).mean().backward()
        norms = torch.cat([p.grad.norm().view(1) for p in net.parameters()])
        dist.all_reduce(norms)
""",
    "ranks of a notebook": """
from accelerate import notebook_launcher

def work(net):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    return DDP(net.cuda(), device_ids=[rank])

notebook_launcher(work, num_processes=2)
""",
    "ranks of several notebooks": """
from accelerate import notebook_launcher

def work(net):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)  #> global-rank-as-device
    return DDP(net.cuda())

notebook_launcher(work, num_processes=2, num_nodes=2)
""",
}
CASES = {**LAYERS, **STEPS}
SCRIPTS = {
    "a port with a default": """
PORT=${PORT:-295000}  #> invalid-port
torchrun --nnodes=2 --node_rank=$1 --master_addr=10.0.0.1 --master_port=$PORT --nproc_per_node=8 train.py
""",
    "a port behind an address": """
PORT=99500  #> invalid-port
torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$PORT --nproc_per_node=8 train.py
""",
    "a port that is handed on": """
PORT=70000  #> invalid-port
export MASTER_PORT=$PORT
torchrun --nproc_per_node=8 train.py
""",
    "a default in the option": """
torchrun --nnodes=1 --master_port=${PORT:-68000} --nproc_per_node=8 train.py  #> invalid-port
""",
    "good ports": """
PORT=${PORT:-29500}
OTHER=$((20000 + RANDOM % 9000))
export MASTER_PORT=${MASTER_PORT:-29501}
torchrun --nnodes=1 --master_port=$PORT --nproc_per_node=8 train.py
torchrun --nnodes=1 --rdzv_endpoint=$HEAD:$OTHER --nproc_per_node=8 train.py
""",
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_layers(name, judged):
    """The marked lines are found, and no others."""
    found, wanted = judged(HEAD + CASES[name])
    assert found == wanted


@pytest.mark.parametrize("name", SCRIPTS)
def test_ports_that_variables_hold(name, judged):
    """The line where the number is written is found, and no other."""
    found, wanted = judged(SCRIPTS[name], "start.sh")
    assert found == wanted
