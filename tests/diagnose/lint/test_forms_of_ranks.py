"""Groups, devices and collectives in other spellings: fields of objects, epochs in functions, choices."""

import pytest

from rankwise.diagnose.lint import check_source, source_from_text

HEAD = """import math
import os
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timeit import default_timer
from torch.nn.parallel import DistributedDataParallel as DDP
from engine import evaluate, train_one_epoch
"""
LINE = HEAD.count("\n")
EPOCHS = """def main(net, loader, opt, args):
    model = DDP(net)
    rank = dist.get_rank()
    for epoch in range(9):
        {}
        if rank == 0:
            if evaluate(model.module, loader) > 0.9:
                break
"""
STEP = """def train(net, loader, opt):
    model = DDP(net)
    for x in loader:
        loss = model(x).mean()
        {}
        loss.backward()
        opt.step()
"""
TRIED = """def train(net, loader, opt):
    model = DDP(net)
    for x in loader:
        try:
            {}
        except Exception:
            {}
        opt.step()
"""
WORLD = """class World:
    def __init__(self):
        self.rank = int(os.environ["RANK"])
        self.local = int(os.environ["LOCAL_RANK"])
        self.size = int(os.environ["WORLD_SIZE"])

world = World()
dist.init_process_group("nccl", rank=world.{}, world_size=world.size)
"""
SHARES = """def mine(items):
    number, n = {}, dist.get_world_size()
    share = len(items) // n
    return {}
"""
MADE = """def main(rank, batches):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    model = torch.nn.Linear(2, 2).{}
    model = DDP(model, device_ids=[rank])
"""
FABRIC = """from lightning.fabric import Fabric

fabric = Fabric(devices=4)
def save(state):
    {}
        fabric.save("x.ckpt", state)
"""
DRAWN = """def main(net, init_weights, freeze):
    {}
    # the optimizer is made later
    {}
"""
LIGHTNING = """import lightning as L

class Net(L.LightningModule):
    def validation_step(self, batch, i):
        loss = self.{}(batch)
        self.log("val_loss", loss{})

L.Trainer(strategy="ddp", devices={}).fit(Net())
"""
ENGINE = """import wandb

class Engine:
    def __init__(self, net, data, train):
        {}
        wandb.init(project="scan")
        sampler = {} if train else None
        self.loader = torch.utils.data.DataLoader(data, sampler=sampler)

    def train(self):
        for x in self.loader:
            self.model(x).sum().backward()
"""
SHARED_OUT = """from accelerate import Accelerator
from torch.utils.data import DataLoader

def main(model, held_out):
    accelerator = Accelerator()
    loader = DataLoader(held_out, batch_size=8)
    {}
    hits = seen = 0
    model.eval()
    for x, y in loader:
        with torch.no_grad():
            hits += (model(x).argmax(1) == y).sum()
            seen += len(y)
    {}
    # the end
    print(hits / seen)
"""
MOVED = """def main(net):
    dist.init_process_group("nccl")
    device = {}
    return DDP(net.to(device))
"""
LATE = """def begin():
    {}
    dist.init_process_group("nccl")
    dist.barrier()

def main(net, local_rank):
    begin()
    {}
    torch.cuda.set_device(local_rank)
    return DDP(net.cuda())
"""

RANKS = """class Ranks:
    @classmethod
    def create(cls):
        return cls()

    @property
    def is_master(self):
        return dist.get_rank() == 0

    def mean(self, x):
        dist.all_reduce(x)
        return x / 2

def made():
    ranks = Ranks()
    return ranks

def show(x{}):
    {}
    if ranks.is_master:
        ranks.mean(x)
"""
OPTION = """from argparse import ArgumentParser
from accelerate import Accelerator

parser = ArgumentParser()
parser.add_argument("--local_rank", default=-1)
{}
accelerator = Accelerator()
"""
LOCAL = "int(os.environ['LOCAL_RANK'])"
PART = "items[number * share:(number + 1) * share]"
CHOSEN_LOG = """def show(x, log):
    log = log if dist.get_rank() == 0 else None
    if log is not None:
        dist.all_reduce(x)
"""
MADE_LOG = """def show(x):
    log = None
    if dist.get_rank() == 0:
        log = Log()
    if log:
        dist.barrier()
    if log is None:
        return
    log(x)
"""
DROPPED = """def total(x):
    dist.all_reduce(x, async_op=True)
    return x.item()

def other(h):
    h.wait()
"""
BANDWIDTH = """def bandwidth(n):
    x = torch.ones(n).cuda(1)
    t = time.time()
    dist.all_reduce(x)
    return n / (time.time() - t)
"""
WAITING = """def bench(model, x):
    x = x.cuda(1)
    t = default_timer()
    model(x)
    print(x.sum().item())
    return default_timer() - t
"""
STEPS = """
def step(model):
    for x in y:
        model(x).backward()
"""


def codes(text):
    found = check_source(source_from_text(HEAD + text, "script.py"))
    return " ".join(f"{one.rule.code}:{one.line - LINE}" for one in found)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # an epoch that is a function, of this file or another, is left by the main rank alone
        (EPOCHS.format("train_one_epoch(model, loader, opt)"), "RW402:8"),
        (EPOCHS.format("show(model, loader, opt)"), ""),
        (EPOCHS.format("step(model)") + STEPS, "RW402:8"),
        # a step that is left out by a number of this rank's own, or after an error of its own
        (STEP.format("if x is None: continue"), ""),
        (TRIED.format("model(x).mean().backward()", "continue"), "RW402:7"),
        (TRIED.format("model(x).mean().backward()", "raise"), ""),
        (TRIED.format("x = x.float()", "continue"), ""),
        # fields of an object of this file
        (WORLD.format("local"), "RW615:8"),
        (WORLD.format("rank"), ""),
        (RANKS.format("", "ranks = Ranks.create()"), "RW401:21"),
        (RANKS.format("", "ranks = made()"), "RW401:21"),
        (RANKS.format(", ranks: Ranks", "pass"), "RW401:21"),
        (RANKS.format("", "ranks = Ranks.load()"), ""),
        # a launcher that passes no option, either
        (OPTION.format(""), "RW604:5"),
        (OPTION.format("local_rank = int(os.environ.get('LOCAL_RANK', -1))"), ""),
        # shares by a test, or by a part of the list
        (SHARES.format(LOCAL, "[x for i, x in enumerate(items) if i % n == number]"), "RW107:4"),
        (SHARES.format(LOCAL, PART), "RW107:4"),
        (SHARES.format("dist.get_rank()", PART), ""),
        # a device by a choice, or by a name
        (MOVED.format('torch.device("cuda:0" if torch.cuda.is_available() else "cpu")'), "RW211:3"),
        (MOVED.format('"cuda:1" if torch.cuda.is_available() else "cpu"'), "RW211:3"),
        (MOVED.format('f"cuda:{net.local_rank}" if dist.is_initialized() else "cuda:0"'), ""),
        # a model that is moved where it is made
        (MADE.format("cuda()"), "RW213:3"),
        (MADE.format("cuda(rank)"), ""),
        # a function compared with a number
        ("def save(x):\n    if dist.get_rank == 0:\n        torch.save(x, 'x.pt')\n", "RW403:2"),
        ("def show(x):\n    if dist.get_world_size != 1 and x:\n        print(x)\n", "RW403:2"),
        ("def show(x):\n    if dist.get_rank is x:\n        print(x)\n", ""),
        # numbers that Lightning logs, of the share of each rank
        (LIGHTNING.format("loss_of", "", 4), "RW314:6"),
        (LIGHTNING.format("loss_of", ", sync_dist=True", 4), ""),
        (LIGHTNING.format("loss_of", "", 4).replace('"ddp", devices=4', '"auto", devices=1'), ""),
        (LIGHTNING.format("accuracy", "", 4), ""),  # torchmetrics add up by themselves
        # an object that wraps the model is made on every rank; a sampler that is a choice
        (ENGINE.format("self.model = DDP(net)", "torch.utils.data.RandomSampler(data)"), "RW316:6 RW101:8"),
        (ENGINE.format("self.model = DDP(net)", "torch.utils.data.DistributedSampler(data)"), "RW316:6"),
        (ENGINE.format("self.model = net", "torch.utils.data.RandomSampler(data)"), ""),
        # a part of a model that this function makes
        ("def main(Net, gpu):\n    m = Net()\n    m.head.cuda(gpu)\n    m = DDP(m, device_ids=[gpu])\n", "RW202:4"),
        ("def main(Net, gpu):\n    m = Net().cuda(gpu)\n    m.head.cuda(gpu)\n    m = DDP(m, device_ids=[gpu])\n", ""),
        # weights drawn anew behind the wrap; a layer of no model behind a wrap of no name
        (DRAWN.format("m = DDP(net)", "m.apply(init_weights)"), "RW410:4"),
        (DRAWN.format("m = DDP(net.apply(init_weights))", "m.apply(freeze)"), ""),
        (DRAWN.format("torch.manual_seed(0)", "m = DDP(net); m.apply(init_weights)"), ""),
        (DRAWN.format("m = DDP(net.to(1))", "n = torch.nn.Linear(2, 2)"), ""),
        # Fabric's save is for every rank
        (FABRIC.format("if fabric.global_rank == 0:"), "RW401:6"),
        (FABRIC.format("if True:"), ""),
        # loaders that Accelerate shares out
        (SHARED_OUT.format("loader = accelerator.prepare(loader)", "pass"), "RW314:16"),
        (SHARED_OUT.format("loader = accelerator.prepare(loader)", "hits = accelerator.reduce(hits)"), ""),
        (SHARED_OUT.format("model = accelerator.prepare(model)", "pass"), ""),
        # work on the GPU before it is chosen, also in a function
        (LATE.format("pass", "pass"), "RW219:9"),
        (LATE.format("torch.cuda.set_device(1 + 1)", "pass"), ""),
        ("def main(net, local_rank):\n    net = net.cuda()\n    torch.cuda.set_device(local_rank)\n", "RW219:3"),
        ("def main(net, local_rank):\n    torch.cuda.set_device(local_rank)\n    net = net.cuda()\n", ""),
        # something that only the main rank has
        (CHOSEN_LOG, "RW401:4"),
        (MADE_LOG, "RW401:6"),
        ("def show(x, log=None):\n    if log is not None:\n        dist.all_reduce(x)\n", ""),
        # handles that are dropped, and tensors that are read too early
        (DROPPED, "RW404:2"),
        ("def total(x):\n    h = dist.all_reduce(x, async_op=True)\n    x /= 2\n    h.wait()\n", "RW404:3"),
        ("def total(x):\n    h = dist.irecv(x, src=0)\n    print(x)\n    h.wait()\n", "RW404:3"),
        ("def total(x):\n    h = dist.irecv(x, src=0)\n    h.wait()\n    print(x)\n", ""),
        # reductions are only queued, too; other clocks
        (BANDWIDTH, "RW307:5"),
        (WAITING, ""),
        # variables for other processes
        ("os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='99999')\n", "RW601:1"),
        ("env = os.environ.copy()\nenv['NCCL_TIMEOUT'] = '9'\n", "RW602:2"),
        ("NAMES = {'NCCL_TIMEOUT': 'How long', 'NCCL_DEBUG': '1'}\nprint('NCCL_TIMEOUT')\n", ""),
    ],
)
def test_what_is_found(text, wanted):
    """A mistake in this form is found at its line, and what looks like it is left alone."""
    assert codes(text) == wanted


@pytest.mark.parametrize(("params", "is_mended"), [("", True), ("rank", False)])
def test_only_a_function_without_arguments_is_called_by_the_fix(params, is_mended):
    """What `--fix` writes is a call that can be made."""
    text = (
        f"def is_main({params}):\n    return dist.get_rank() == 0\n\ndef save(x):\n    if is_main:\n        print(x)\n"
    )
    [found] = check_source(source_from_text(HEAD + text, "script.py"))
    assert (found.rule.code, found.fix is not None) == ("RW403", is_mended)
