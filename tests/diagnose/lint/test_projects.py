"""Files of one project: what makes a loader is held against the file that trains. All invented.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import re

import pytest

from rankwise.diagnose.lint import lint_paths

HEAD = """import os
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
"""
TRAIN = (
    HEAD
    + """
from data import make_loader
from checks import show

def main(net, optimizer):
    loader = make_loader("train")
    model = DDP(net)
    for epoch in range(9):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            show(model)  #> wrapped-forward-on-one-rank
"""
)
DATA = """import torch
from torch.utils.data import DataLoader, DistributedSampler, random_split

def make_loader(part):
    data, rest = random_split(torch.load(part), [9, 1])  #> unseeded-split
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data))  #> missing-set-epoch
"""
CHECKS = """import torch

def show(net):
    print(net(torch.ones(1)))
"""


def right(text, *changes):
    """Return a case without its mistakes, with some of its words changed."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return re.sub(r"  #>[^\n]*", "", text)


def marked(text):
    """Return the lines that a case marks, and the rule of each."""
    found = [(number, re.search(r"#> (\S+)", line)) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, mark[1]) for number, mark in found if mark]


@pytest.mark.parametrize(
    ("train", "data", "checks"),
    [
        (TRAIN, DATA, CHECKS),
        (
            right(
                TRAIN,
                ("    loader =", "    torch.manual_seed(0)\n    loader ="),
                ("        for x", "        loader.sampler.set_epoch(epoch)\n        for x"),
                ("show(model)", "show(model.module)"),
            ),
            right(DATA),
            CHECKS,
        ),
        (
            right(TRAIN, ("from data import", "from other import"), ("show(model)", "show(net)")),
            right(DATA, (", sampler=DistributedSampler(data)", "")),
            CHECKS,
        ),
    ],
)
def test_files_of_one_project(tmp_path, train, data, checks):
    """What makes a loader is held against the file that trains with it; alone, it is left alone."""
    files = {"train.py": train, "data.py": data, "checks.py": checks}
    for name, text in files.items():
        (tmp_path / name).write_text(re.sub(r"  #>[^\n]*", "", text))
    found = [(each.file.rpartition("/")[2], each.line, each.rule.slug) for each in lint_paths([tmp_path]).findings]
    assert sorted(found) == sorted((name, *mark) for name, text in files.items() for mark in marked(text))
