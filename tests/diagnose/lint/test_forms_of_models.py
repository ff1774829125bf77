"""Mistakes in forms of long scripts: models, states, devices by way of classes, results, options. All invented."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

HEAD = """import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
"""
EVALUATION_BY_A_METHOD = (
    HEAD
    + """
class Learner:
    def __init__(self, net, several):
        self.leads = dist.get_rank() == 0
        self.model = net
        if several:
            self.model = DDP(self.model)

    def run(self, loader, optimizer):
        for x in loader:
            self.model(x).sum().backward()
            optimizer.step()
            if self.leads:
                self.score(x)

    def score(self, x):
        return self.model(x).mean()
"""
)
EVALUATION_OF_A_FIELD = (
    HEAD
    + """
class Engine:
    def __init__(self, net):
        self.model = DDP(net)

def main(net, x, rank):
    engine = Engine(net)
    if rank == 0:
        print(engine.model(x))
"""
)
EVALUATION_OF_A_RESULT = (
    HEAD
    + """
def build(net):
    net = DDP(net)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)

def main(net, x, rank):
    model, optimizer = build(net)
    if rank == 0:
        print(model(x))
"""
)
EVALUATION_BY_AN_OBJECT = (
    HEAD
    + """
def main(net, x, rank, judge):
    model = DDP(net)
    if rank == 0:
        judge.validate(model=model, data=x)
"""
)
FORWARD_OF_A_PARAMETER = (
    HEAD
    + """
def fit(model, loader, optimizer):
    for x in loader:
        losses = model.module.losses(x)
        total = 0
        for name, value in losses.items():
            total = total + value.mean()
        total.backward()
        optimizer.step()

def main(net, loader, optimizer):
    fit(DDP(net), loader, optimizer)
    wrapped = DDP(net)
    fit(wrapped, loader, optimizer)
"""
).replace("    fit(DDP(net), loader, optimizer)\n", "")
FORWARD_OF_THE_BARE_MODEL = (
    HEAD
    + """
def main(net, loader, optimizer):
    ddp_net = DDP(net)
    for x in loader:
        net.train()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
    net.eval()
"""
)
FORWARD_IN_A_STEP = (
    HEAD
    + """
class Learner:
    def __init__(self, net):
        self.model = self.wrap(net)
        self.raw = self.model.module if net else self.model

    def wrap(self, net):
        return DDP(net)

    def step(self, x):
        loss = self.raw(x)
        loss.backward()
"""
)
SAVED_BEHIND_AN_OPTION = (
    HEAD
    + """
import argparse

def work(rank, args, net):
    dist.init_process_group("gloo", "tcp://localhost:2000", rank=rank, world_size=2)
    if args.save_model:
        torch.save(net.state_dict(), "net.pt")

def main(net):
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-model", action="store_true")
    torch.multiprocessing.spawn(work, args=(parser.parse_args(), net), nprocs=2)
"""
)
STATE_BY_A_HELPER_OF_ANOTHER_FILE = (
    HEAD
    + """
from helpers import save_on_main

def main(net, path):
    model = DDP(net)
    save_on_main({"model": model.state_dict()}, path)
"""
)
STATE_OF_A_FIELD = (
    HEAD
    + """
class Learner:
    def __init__(self, net, rank):
        net = DDP(net)
        self.net = net
        self.rank = rank

    def keep(self, path):
        if self.rank == 0:
            torch.save({"net": self.net.state_dict()}, path)
"""
)
READ_AFTER_THE_LOOP = (
    HEAD
    + """
def main(net, loader, optimizer, rank):
    model = DDP(net)
    for epoch in range(3):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
        if rank == 0:
            torch.save(model.module.state_dict(), "best.pt")
    model.module.load_state_dict(torch.load("best.pt", map_location="cpu"))
"""
)
DEVICE_BY_A_VARIABLE = (
    HEAD
    + """
def main(net):
    dist.init_process_group("nccl")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = net.to(device)
    return DDP(net)
"""
)
DEVICE_BEHIND_A_TEST = DEVICE_BY_A_VARIABLE.replace(
    '    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n    net = net.to(device)\n',
    "    if torch.cuda.is_available():\n        net = net.cuda()\n",
)
RANK_BESIDE_A_LOCAL_ONE = (
    HEAD
    + """
def work(rank, local_rank, net):
    torch.cuda.set_device(local_rank)
    return DDP(net.cuda(), device_ids=[rank])
"""
)
RANK_OF_OPTIONS = (
    HEAD
    + """
def start(args):
    args.number = int(os.environ["RANK"])
    dist.init_process_group("nccl")

def main(args, net):
    start(args)
    torch.cuda.set_device(args.number)
    return DDP(net.cuda())
"""
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EVALUATION_BY_A_METHOD, [("wrapped-forward-on-one-rank", 19)]),
        (EVALUATION_OF_A_FIELD, [("wrapped-forward-on-one-rank", 14)]),
        (EVALUATION_OF_A_RESULT, [("wrapped-forward-on-one-rank", 14)]),
        (EVALUATION_BY_AN_OBJECT, [("wrapped-forward-on-one-rank", 10)]),
        (FORWARD_OF_A_PARAMETER, [("module-forward", 9)]),
        (FORWARD_OF_THE_BARE_MODEL, [("module-forward", 11)]),
        (FORWARD_IN_A_STEP, [("module-forward", 16)]),
        (SAVED_BEHIND_AN_OPTION, [("save-on-all-ranks", 12)]),
        (STATE_BY_A_HELPER_OF_ANOTHER_FILE, [("save-wrapped-state", 11)]),
        (STATE_OF_A_FIELD, [("save-wrapped-state", 15)]),
        (READ_AFTER_THE_LOOP, [("save-without-barrier", 15)]),
        (DEVICE_BY_A_VARIABLE, [("no-set-device", 10)]),
        (DEVICE_BEHIND_A_TEST, [("no-set-device", 10)]),
        (RANK_BESIDE_A_LOCAL_ONE, [("global-rank-as-device", 9)]),
        (RANK_OF_OPTIONS, [("global-rank-as-device", 13)]),
    ],
)
def test_a_mistake_is_found_at_its_line(text: str, expected: list[tuple[str, int]]) -> None:
    """These findings and no others."""
    findings = check_source(source_from_text(text, "train.py"))
    assert sorted((found.rule.slug, found.line) for found in findings) == sorted(expected)


LEFT_ALONE = {
    "all ranks evaluate": EVALUATION_BY_A_METHOD.replace("if self.leads:", "if x:"),
    "the bare model evaluates": EVALUATION_BY_A_METHOD.replace("return self.model(x)", "return self.model.module(x)"),
    "another class has a model, too": EVALUATION_OF_A_FIELD.replace("engine = Engine(net)", "engine = net.engine"),
    "buffers are not shared": EVALUATION_OF_A_FIELD.replace("DDP(net)", "DDP(net, broadcast_buffers=False)"),
    "a result is unwrapped": EVALUATION_OF_A_RESULT.replace("    if rank", "    model = model.module\n    if rank"),
    "the second result": EVALUATION_OF_A_RESULT.replace("print(model(x))", "print(optimizer(x))"),
    "the model that was wrapped evaluates": EVALUATION_BY_AN_OBJECT.replace("model=model", "model=net"),
    "it is saved, not run": EVALUATION_BY_AN_OBJECT.replace("validate", "save"),
    "some callers give a bare model": FORWARD_OF_A_PARAMETER.replace(
        "    fit(wrapped", "    fit(net, loader, optimizer)\n    fit(wrapped"
    ).replace("model.module.losses(x)", "model(x)"),
    "the wrapped model runs, too": FORWARD_OF_THE_BARE_MODEL.replace(
        "loss = net(x)", "loss = ddp_net(x).sum() + net(x)"
    ),
    "the bare model teaches": FORWARD_OF_THE_BARE_MODEL.replace(
        "loss = net(x).sum()", "loss = other(net(x).detach(), x)"
    )
    .replace("        net.train()", "        with torch.no_grad():\n            goal = net(x)")
    .replace("net(x).detach()", "goal"),
    "wrapped in some runs only": FORWARD_OF_THE_BARE_MODEL.replace(
        "    ddp_net =", "    if dist.is_initialized():\n        ddp_net ="
    ),
    "a function of that parameter": FORWARD_OF_THE_BARE_MODEL.replace("for x in loader:", "def fit(net, x):"),
    "an option of another file": SAVED_BEHIND_AN_OPTION.replace('"--save-model"', '"--others"'),
    "an option that holds the rank": SAVED_BEHIND_AN_OPTION.replace(
        "    if args", "    args.save_model = args.save_model and rank == 0\n    if args"
    ),
    "the helper is shown": STATE_BY_A_HELPER_OF_ANOTHER_FILE.replace(
        "from helpers import save_on_main", "def save_on_main(state, path):\n    print(state, path)"
    ),
    "a field of the bare model": STATE_OF_A_FIELD.replace("self.net = net", "self.net = net.module"),
    "ranks meet behind the loop": READ_AFTER_THE_LOOP.replace(
        "    model.module.load", "    dist.barrier()\n    model.module.load"
    ),
    "an index is chosen": DEVICE_BY_A_VARIABLE.replace('"cuda" if', 'f"cuda:{os.environ[chr(76)]}" if'),
    "one process": DEVICE_BEHIND_A_TEST.replace("if torch", "if not dist.is_initialized() and torch"),
    "a tensor": DEVICE_BEHIND_A_TEST.replace("net = net.cuda()", "x = torch.ones(1).cuda()"),
    "the parameter is the local one": RANK_BESIDE_A_LOCAL_ONE.replace("(rank, local_rank, net)", "(rank, net)").replace(
        "set_device(local_rank)", "set_device(rank)"
    ),
    "the option is the local one": RANK_OF_OPTIONS.replace('"RANK"', '"LOCAL_RANK"'),
    "options of two meanings": RANK_OF_OPTIONS.replace(
        "    dist.init", '    args.number = int(os.environ["LOCAL_RANK"])\n    dist.init'
    ),
    "data are read": HEAD
    + """
def main(net):
    model = DDP(net.cuda(int(os.environ["LOCAL_RANK"])))
    train_set = torch.load("train.pt")
    return model, train_set
""",
    "a call of itself": HEAD
    + """
class Net(torch.nn.Module):
    def predict(self, x):
        return self(x)

def main(net):
    net = Net()
    net.predict(DDP(net))
""",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    """Nothing is found."""
    assert [
        (found.rule.slug, found.line) for found in check_source(source_from_text(LEFT_ALONE[name], "train.py"))
    ] == []
