"""Mistakes in forms of long scripts: loops, samplers, tests of the rank by way of helpers, objects. All invented."""

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
STOP_ON_ONE_RANK = (
    HEAD
    + """
def main(net, loader, optimizer, rank, patience):
    model = DDP(net)
    idle = 0
    for _ in range(100):
        for x in loader:
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
        if rank == 0:
            if worse(loss):
                idle += 1
            else:
                idle = 0
        if idle > patience:
            break
"""
)
_COUNTED = "            if worse(loss):\n                idle += 1\n            else:\n                idle = 0\n"
STOP_BY_AN_OBJECT = STOP_ON_ONE_RANK.replace(_COUNTED, "            idle(loss)\n\n\n\n").replace(
    "if idle > patience:", "if idle.early_stop:"
)
DRAWN_FROM_ALL = (
    HEAD
    + """
def main(net, data, criterion, optimizer):
    model = DDP(net)
    loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data))
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
"""
).replace("DistributedSampler, ", "")
STEP_IN_A_METHOD = (
    HEAD
    + """
class Learner:
    def __init__(self, net):
        self.model = DDP(net)

    def step(self, x, optimizer):
        self.model(x).sum().backward()
        optimizer.step()

    def run(self, data, optimizer):
        loader = DataLoader(data, shuffle=True)
        for number, x in enumerate(loader):
            self.step(x, optimizer)
"""
).replace(", DistributedSampler, RandomSampler", "")
BATCHES_ONE_BY_ONE = (
    HEAD
    + """
def main(net, data, optimizer):
    model = DDP(net)
    loader = DataLoader(data, shuffle=True)
    batches = iter(loader)
    for number in range(1000):
        model(next(batches)).sum().backward()
        optimizer.step()
"""
).replace(", DistributedSampler, RandomSampler", "")
EPOCHS_FAR_OUT = (
    HEAD
    + """
def main(net, data, optimizer, options):
    loader = DataLoader(data, sampler=DistributedSampler(data))
    rounds = range(options.epochs) if data else ()
    for i in rounds:
        for x in loader:
            for repeat in range(3):
                net(x).sum().backward()
                optimizer.step()
"""
)
EPOCHS_OF_A_CALLER = (
    HEAD
    + """
class Learner:
    def __init__(self, net, data):
        self.loader = DataLoader(data, sampler=DistributedSampler(data))
        self.net = net

    def one_pass(self, optimizer):
        for x in self.loader:
            self.net(x).sum().backward()
            optimizer.step()

def main(net, data, optimizer, epochs):
    learner = Learner(net, data)
    for i in range(epochs):
        learner.one_pass(optimizer)
"""
)
EPOCHS_BY_WHILE = (
    HEAD
    + """
import deepspeed

def main(net, data, optimizer, epochs):
    loader = DataLoader(data, sampler=DistributedSampler(data))
    epoch = 0
    while epoch < epochs:
        for x in loader:
            net(x).sum().backward()
        epoch += 1
"""
)
LEADER_BY_A_HELPER = (
    HEAD
    + """
def leads():
    return dist.get_rank() == 0

def report(loss):
    if leads():
        dist.all_reduce(loss)
"""
)
LEADER_BY_A_KEY = LEADER_BY_A_HELPER.replace("report(loss)", "report(loss, config)").replace(
    "if leads():", 'if config["rank"] == 0:'
)
LEADER_BY_A_CHOICE = LEADER_BY_A_HELPER.replace(
    "    if leads():", "    first = dist.get_rank() == 0 if loss else True\n    if first:"
)
LEADER_OF_OPTIONS = (
    HEAD
    + """
def start(args):
    args.number = int(os.environ["RANK"])

def main(args, loss):
    start(args)
    if args.number == 0:
        dist.all_reduce(loss)
"""
)
MICRO_BATCHES_IN_A_STEP = STEP_IN_A_METHOD.replace(
    "self.model(x).sum().backward()", "(self.model(x).loss / self.accumulation).backward()"
).replace("DataLoader(data, shuffle=True)", "data")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STOP_ON_ONE_RANK, [("rank-dependent-exit", 21)]),
        (STOP_BY_AN_OBJECT, [("rank-dependent-exit", 21)]),
        (DRAWN_FROM_ALL, [("missing-sampler", 9)]),
        (STEP_IN_A_METHOD, [("missing-sampler", 16)]),
        (BATCHES_ONE_BY_ONE, [("missing-sampler", 9)]),
        (EPOCHS_FAR_OUT, [("missing-set-epoch", 8)]),
        (EPOCHS_OF_A_CALLER, [("missing-set-epoch", 9)]),
        (EPOCHS_BY_WHILE, [("missing-set-epoch", 10)]),
        (LEADER_BY_A_HELPER, [("collective-in-rank-branch", 12)]),
        (LEADER_BY_A_KEY, [("collective-in-rank-branch", 12)]),
        (LEADER_BY_A_CHOICE, [("collective-in-rank-branch", 13)]),
        (LEADER_OF_OPTIONS, [("collective-in-rank-branch", 13)]),
        (MICRO_BATCHES_IN_A_STEP, [("accumulation-without-no-sync", 12)]),
    ],
)
def test_a_mistake_is_found_at_its_line(text: str, expected: list[tuple[str, int]]) -> None:
    """These findings and no others."""
    findings = check_source(source_from_text(text, "train.py"))
    assert sorted((found.rule.slug, found.line) for found in findings) == sorted(expected)


LEFT_ALONE = {
    "the decision is told": STOP_ON_ONE_RANK.replace(
        "        if idle >", "        idle = torch.tensor(idle)\n        dist.broadcast(idle, 0)\n        if idle >"
    ),
    "a helper tells it": STOP_ON_ONE_RANK.replace(
        "        if idle >", "        share_from_main(idle)\n        if idle >"
    ),
    "all ranks count": STOP_ON_ONE_RANK.replace("if rank == 0:", "dist.all_reduce(loss)\n        if patience:"),
    "all ranks ask the object": STOP_BY_AN_OBJECT.replace("if rank == 0:", "if loss:"),
    "it is set before the loop": STOP_ON_ONE_RANK.replace(_COUNTED, "            print(loss)\n"),
    "draws are shared out": DRAWN_FROM_ALL.replace("RandomSampler(data)", "OfMyRank(data)"),
    "drawn by weights": DRAWN_FROM_ALL.replace("RandomSampler", "WeightedRandomSampler"),
    "one step evaluates": STEP_IN_A_METHOD.replace("def step", "def eval_step").replace(
        "self.step(", "self.eval_step("
    ),
    "other batches": BATCHES_ONE_BY_ONE.replace("iter(loader)", "iter(data)"),
    "one pass": EPOCHS_OF_A_CALLER.replace("range(epochs)", "range(1)"),
    "folds are counted": EPOCHS_FAR_OUT.replace("range(options.epochs)", "range(options.folds)").replace(
        "for x in loader", "for x in data"
    ),
    "the epoch is set": EPOCHS_FAR_OUT.replace("        for x", "        loader.sampler.epoch = i\n        for x"),
    "a library sets it": EPOCHS_BY_WHILE.replace("import deepspeed", "import lightning"),
    "a helper that asks for something else": LEADER_BY_A_HELPER.replace(
        "dist.get_rank() == 0", "dist.is_initialized()"
    ),
    "another key": LEADER_BY_A_KEY.replace('"rank"', '"ranks"'),
    "a choice without the rank": LEADER_BY_A_CHOICE.replace("dist.get_rank() == 0 if loss", "loss > 0 if loss"),
    "another option": LEADER_OF_OPTIONS.replace('int(os.environ["RANK"])', "len(os.environ)"),
    "inside no_sync": MICRO_BATCHES_IN_A_STEP.replace("        (self", "        self.model.no_sync()\n        (self"),
    "a step alone": MICRO_BATCHES_IN_A_STEP.replace("            self.step(x, optimizer)", "            pass"),
    "both sides talk by functions of their own": HEAD
    + """
class Talk:
    def ask(self, x):
        dist.broadcast(x, 0)

    def answer(self, x):
        dist.broadcast(x, 0)

def main(x, rank):
    talk = Talk()
    if rank == 0:
        talk.ask(x)
    else:
        talk.answer(x)
""",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    """Nothing is found."""
    assert [
        (found.rule.slug, found.line) for found in check_source(source_from_text(LEFT_ALONE[name], "train.py"))
    ] == []
