"""Mistakes that lie half in a helper: a function, a callback, a variable of the shell, a list of gradients.

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
STOPS = """
def ask_first(flag, device):
    told = torch.tensor([int(flag)], device=device)
    dist.broadcast(told, src=0)
    return bool(told.item())

class Fitter:
    def __init__(self, net, hooks):
        self.net, self.hooks, self.halt = DDP(net), hooks, False

    def fit(self, batches, optimizer):
        for epoch in range(9):
            self.one_round(batches, optimizer)
            for hook in self.hooks:
                hook.after(self, epoch)
            {ask}
            if self.halt:{mark}
                break{late}

    def one_round(self, batches, optimizer):
        for x in batches:
            self.net(x).mean().backward()
            optimizer.step()

    def agree(self):
        told = [self.halt]
        dist.broadcast_object_list(told, src=0)
        self.halt = told[0]

class Patience:
    def after(self, fitter: Fitter, epoch):
        {guard}
            fitter.halt = epoch > 4
"""
EXITS = {
    "a callback stops the main rank": STOPS.replace("{ask}", "pass")
    .replace("{mark}", "")
    .replace("{late}", "  #> rank-dependent-exit")
    .replace("{guard}", "if dist.get_rank() == 0:"),
    "a callback stops all ranks": STOPS.replace("{ask}", "pass")
    .replace("{mark}", "")
    .replace("{late}", "")
    .replace("{guard}", "if epoch:"),
    "a method tells the others": STOPS.replace("{ask}", "self.agree()")
    .replace("{mark}", "")
    .replace("{late}", "")
    .replace("{guard}", "if dist.get_rank() == 0:"),
    "an answer that a function shares": """
def ask_first(flag, device):
    told = torch.tensor([int(flag)], device=device)
    dist.broadcast(told, src=0)
    return bool(told.item())

def fit(net, batches, optimizer, device, score):
    net = DDP(net)
    done = False
    for epoch in range(9):
        for x in batches:
            net(x).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            done = score(epoch) > 0.9
        if ask_first(done, device):
            break
""",
    "an answer that a function only prints": """
def shown(flag):
    print("done", flag)
    return bool(flag)

def one_round(net, batches, optimizer):
    for x in batches:
        net(x).mean().backward()
        optimizer.step()

def fit(net, batches, optimizer, score):
    net = DDP(net)
    done = False
    for epoch in range(9):
        one_round(net, batches, optimizer)
        if dist.get_rank() == 0:
            done = score(epoch) > 0.9
        if shown(done):
            break  #> rank-dependent-exit
""",
}
LOADS = {
    "only the number of the epoch is sent": """
def resume(net, path, device):
    net = DDP(net)
    begin = torch.zeros(1, dtype=torch.long, device=device)
    if dist.get_rank() == 0:
        state = torch.load(path, map_location="cpu")
        net.module.load_state_dict(state["net"])  #> load-on-one-rank
        begin.fill_(state["epoch"])
    dist.broadcast(begin, src=0)
    return net, begin
""",
    "only a list with the epoch is sent": """
def resume(net, path):
    net = DDP(net)
    start_epoch = 0
    if dist.get_rank() == 0:
        state = torch.load(path, map_location="cpu")
        net.module.load_state_dict(state["net"])  #> load-on-one-rank
        start_epoch = state["epoch"]
    told = [start_epoch]
    dist.broadcast_object_list(told, src=0)
    return net, told[0]
""",
    "the weights are sent, too": """
def resume(net, path, device):
    net = DDP(net)
    begin = torch.zeros(1, dtype=torch.long, device=device)
    if dist.get_rank() == 0:
        state = torch.load(path, map_location="cpu")
        net.module.load_state_dict(state["net"])
        begin.fill_(state["epoch"])
    dist.broadcast(begin, src=0)
    for each in net.module.state_dict().values():
        dist.broadcast(each, src=0)
    return net, begin
""",
    "the state itself is sent": """
def resume(net, path):
    net = DDP(net)
    state = [None]
    if dist.get_rank() == 0:
        state = [torch.load(path, map_location="cpu")]
        net.module.load_state_dict(state[0])
    dist.broadcast_object_list(state, src=0)
    net.module.load_state_dict(state[0])
    return net
""",
    "a table that the file itself keeps": """
TABLE = "table.pt"

def table(words):
    if dist.get_rank() == 0:
        torch.save({"ids": torch.tensor(words).view(-1, 8), "size": 8}, TABLE)
    dist.barrier()
    return torch.load(TABLE)

def main(net, words, local_rank):
    torch.cuda.set_device(local_rank)
    return DDP(net.cuda(), device_ids=[local_rank]), table(words)
""",
    "weights that the file itself keeps": """
BEST = "best.pt"

def main(net, local_rank):
    torch.cuda.set_device(local_rank)
    net = DDP(net.cuda(), device_ids=[local_rank])
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), BEST)
    dist.barrier()
    net.module.load_state_dict(torch.load(BEST))  #> load-without-map-location
    return net
""",
}
FILES = {
    "written and read by two functions": """
BEST = "best.pt"

def keep(net):
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), BEST)

def look(net):
    net.module.load_state_dict(torch.load(BEST, map_location="cpu"))  #> save-without-barrier

def main(net):
    net = DDP(net)
    for epoch in range(4):
        keep(net)
        look(net)
""",
    "a folder of a model": """
from transformers import AutoModel
FOLDER = "kept"

class Job:
    def __init__(self, net):
        self.net = DDP(net)

    def keep(self):
        if dist.get_rank() == 0:
            self.net.module.save_pretrained(FOLDER)

    def main(self):
        self.keep()
        return AutoModel.from_pretrained(FOLDER)  #> save-without-barrier
""",
    "kept only where it is called": """
BEST = "best.pt"

def keep(net):
    torch.save(net.module.state_dict(), BEST)

def main(net):
    net = DDP(net)
    if dist.get_rank() == 0:
        keep(net)
    net.module.load_state_dict(torch.load(BEST, map_location="cpu"))  #> save-without-barrier
""",
    "the writer waits for all": """
BEST = "best.pt"

def keep(net):
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), BEST)
    dist.barrier()

def look(net):
    net.module.load_state_dict(torch.load(BEST, map_location="cpu"))

def main(net):
    net = DDP(net)
    keep(net)
    look(net)
""",
    "something between waits for all": """
BEST = "best.pt"

def keep(net):
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), BEST)

def score(net, total):
    dist.all_reduce(total)

def main(net, total):
    net = DDP(net)
    keep(net)
    score(net, total)
    net.module.load_state_dict(torch.load(BEST, map_location="cpu"))
""",
    "another file, by a parameter": """
def keep(net, path):
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), path)

def look(net, path):
    net.module.load_state_dict(torch.load(path, map_location="cpu"))

def main(net, one, other):
    net = DDP(net)
    keep(net, one)
    look(net, other)
""",
    "states of a trainer, in a callback": """
class Runner:
    def prepare(self, net):
        return DDP(net)

    def fit(self, net):
        self.model = self.prepare(net)

class Keep:
    def after(self, runner, path):
        if dist.get_rank() == 0:
            torch.save(runner.model.state_dict(), path)  #> save-wrapped-state

class KeepInside:
    def after(self, runner, path):
        if dist.get_rank() == 0:
            torch.save(runner.model.module.state_dict(), path)
""",
    "the state of DataParallel": """
def fit(net, path):
    net = nn.DataParallel(net)  #> dataparallel-module
    torch.save(net.state_dict(), path)  #> save-wrapped-state
""",
    "the state behind DataParallel, and one that comes back": """
def fit(net, path):
    net = nn.DataParallel(net)  #> dataparallel-module
    torch.save(net.module.state_dict(), path)

def again(net, path):
    both = nn.DataParallel(net)  #> dataparallel-module
    both.load_state_dict(torch.load(path, map_location="cpu"))
    torch.save({"net": both.state_dict()}, path)
""",
}
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
CASES = {**EXITS, **LOADS, **FILES, **LAYERS, **STEPS}
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
def test_what_a_helper_does(name, judged):
    """The marked lines are found, and no others."""
    found, wanted = judged(HEAD + CASES[name])
    assert found == wanted


@pytest.mark.parametrize("name", SCRIPTS)
def test_ports_that_variables_hold(name, judged):
    """The line where the number is written is found, and no other."""
    found, wanted = judged(SCRIPTS[name], "start.sh")
    assert found == wanted
