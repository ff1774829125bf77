"""Mistakes that lie half in a helper: a function, a callback, a file that comes back.

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
CASES = {**EXITS, **LOADS, **FILES}


@pytest.mark.parametrize("name", CASES)
def test_what_a_helper_does(name, judged):
    """The marked lines are found, and no others."""
    found, wanted = judged(HEAD + CASES[name])
    assert found == wanted
