"""Mistakes of a seventh round of public files which a rule once missed, and a false alarm: each in invented code."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

OPTIONS = """
import os
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

def train(net, data, criterion, optimizer):
    model = DDP(net)
    workers = min(os.cpu_count(), 32)
    options = dict(batch_size=8, num_workers=workers, pin_memory=True)
    loader = DataLoader(data, shuffle=True, **options)
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
"""
TORCH_BY_A_STAR = """
from common.names import *

def evaluate(model, x):
    with torch.cuda.amp.autocast():
        return model(x)
"""
SHARDED_FORWARD_ON_ONE_RANK = """
import torch.distributed as dist
from helpers import compute_accuracy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def test(model, rank, data):
    if rank == 0:
        with FSDP.state_dict_type(model, 1, 2):
            print(compute_accuracy(net=model, data=data))
    dist.barrier()

def main(net, rank, data):
    model = FSDP(net)
    test(model=model, rank=rank, data=data)
"""
ALONE = ("missing-sampler", 11)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPTIONS, [ALONE, ("workers-per-rank", 10)]),
        (OPTIONS.replace("dict(batch_size=8, num_workers=workers, pin_memory=True)", '{"num_workers": workers}'),
         [ALONE, ("workers-per-rank", 10)]),
        (OPTIONS.replace("**options", "**dict(num_workers=os.cpu_count() - 2)"), [ALONE, ("workers-per-rank", 11)]),
        (TORCH_BY_A_STAR, [("deprecated-cuda-amp", 5)]),
        (SHARDED_FORWARD_ON_ONE_RANK, [("wrapped-forward-on-one-rank", 9)]),
        (SHARDED_FORWARD_ON_ONE_RANK.replace("FSDP(net)", "DDP(net)").replace(
            "import torch.dist", "from torch.nn.parallel import DistributedDataParallel as DDP\nimport torch.dist"
        ), [("wrapped-forward-on-one-rank", 10)]),
        (SHARDED_FORWARD_ON_ONE_RANK.replace("compute_accuracy(net=model, data=data)", "model.state_dict()"),
         [("collective-in-rank-branch", 8)]),
    ],
)  # fmt: skip
def test_a_mistake_that_was_missed_is_found_at_its_line(text: str, expected: list[tuple[str, int]]) -> None:
    """These findings and no others."""
    findings = check_source(source_from_text(text, "train.py"))
    assert sorted((found.rule.slug, found.line) for found in findings) == sorted(expected)


FEW = OPTIONS.replace("32", "8")
LEFT_ALONE = {
    "a sampler among the options": FEW.replace("pin_memory", "sampler=make(data), pin_memory").replace(
        "shuffle=True, ", ""
    ),
    "options that are written to": OPTIONS.replace("    loader", '    options["sampler"] = make(data)\n    loader', 1),
    "options that are updated": OPTIONS.replace("    loader", "    options.update(more())\n    loader", 1),
    "options with two values": OPTIONS.replace("    loader", "    if not net:\n        options = {}\n    loader", 1),
    "options that are given": OPTIONS.replace("optimizer):", "optimizer, options):").replace(
        "    options = ", "    _ = "
    ),
    "options out of options": OPTIONS.replace("dict(batch", "dict(**given(), batch"),
    "another torch": TORCH_BY_A_STAR.replace("import *", "import torch"),
    "all ranks evaluate": SHARDED_FORWARD_ON_ONE_RANK.replace("if rank == 0:", "if data:"),
    "another model is evaluated": SHARDED_FORWARD_ON_ONE_RANK.replace("net=model", "net=data.whole"),
    "the model of the parameters is another one": SHARDED_FORWARD_ON_ONE_RANK.replace(
        "    if rank", "    model = data.whole\n    if rank"
    ),
    "another model is given": SHARDED_FORWARD_ON_ONE_RANK.replace("model=model, rank", "model=net, rank"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    """Nothing is found."""
    assert check_source(source_from_text(LEFT_ALONE[name], "train.py")) == []


def test_options_that_calls_share_are_not_edited() -> None:
    """The finding is there; its fix would take shuffle=True from other calls."""
    text = """
import torch

def make(data, other):
    options = dict(batch_size=8, shuffle=True)
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, sampler=sampler, **options)
    return loader, torch.utils.data.DataLoader(other, **options)
"""
    (found,) = [one for one in check_source(source_from_text(text, "train.py")) if one.rule.code == "RW102"]
    assert found.fix is None
