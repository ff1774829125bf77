"""Mistakes as they stand in public scripts, which a rule once missed: each is found, in invented code."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

RETURN_BEFORE_A_BARRIER = """
import torch.distributed as dist

def main(args, folder):
    dist.init_process_group("nccl", device_id=args.device)
    if dist.get_rank() == 0:
        folder.mkdir()
        if any(folder.iterdir()):
            return 1
    dist.barrier()
"""
RETURN_BEFORE_THE_WRAP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def is_master(args):
    return args.rank == 0

def main(args, folder, net):
    if is_master(args):
        if folder.exists():
            return -1
    if args.distributed:
        net = DistributedDataParallel(net, device_ids=[args.local_rank])
    return 0
"""
DEVICE_AFTER_A_BARRIER = """
import torch
import torch.distributed as dist

def main(args, local_rank):
    dist.init_process_group("nccl")
    dist.barrier()
    if args.device == "cuda":
        torch.cuda.set_device(local_rank)
"""

A_MODULE_ITSELF = """
import torch

class Trainer:
    def __init__(self, net, device_ids):
        self.net = net
        self.model = torch.nn.DataParallel(net, device_ids)  # rankwise: ignore[RW210] one machine

    def save(self, path):
        torch.save(self.net.cpu(), path)
        self.net.to("cuda")
"""

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
"""
EPOCHS_BY_ANOTHER_NAME = (
    HEAD
    + """
def main(data, net, criterion, optimizer):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for i in range(10):
        for x, y in loader:
            criterion(net(x), y).backward()
            optimizer.step()
"""
)
LOADER_HANDED_OVER = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net):
        self.model = DDP(net)

    def fit(self, loader):
        for x in loader:
            self.model(x).sum().backward()

def main(net, data):
    train_loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    Trainer(net).fit(train_loader)
"""
OLD_OPERATION = (
    HEAD
    + """
def mean(values):
    dist.all_reduce(values, op=dist.reduce_op.SUM)
"""
)
SUBCLASS = """
import torch

class Parallel(torch.nn.DataParallel):
    def __getattr__(self, name):
        return getattr(self.module, name)
"""
OPTIONAL_APEX = """
try:
    from apex import amp
except ImportError:
    amp = None
"""
RANK_OF_A_CONFIGURATION = (
    HEAD
    + """
def main(net, config):
    dist.init_process_group("nccl", device_id=config.device)
    return DDP(net.cuda(), device_ids=[config.rank])
"""
)
MICRO_BATCHES = """
from accelerate import Accelerator

def train(model, loader, optimizer, accum_every):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    for _ in range(accum_every):
        loss = model(next(loader))
        accelerator.backward(loss / accum_every)
    optimizer.step()
"""
MICRO_BATCHES_BY_A_HELPER = (
    HEAD
    + """
def train(net, batches, amp, config):
    model = DDP(net)
    for batch in batches:
        for part in batch:
            with amp.context():
                loss = model(part).sum()
                loss = loss / config.accumsteps
            amp.backward(loss)
        amp.step(model)
"""
)
STOP_BY_THE_OWN_LOSS = (
    HEAD
    + """
def train(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
"""
)
MODEL_THAT_TRAIN_RETURNS = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net):
        self.model = DDP(net)

    def train(self):
        return self.model

def main(rank, net):
    model = Trainer(net).train()
    if rank == 0:
        torch.save(model, "model.pt")
"""
SHARDED_STATE_ON_ONE_RANK = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, rank, kind, policy):
    if rank != 0:
        return None
    with FSDP.state_dict_type(model, kind, policy):
        return model.state_dict()
"""
STOP_BY_A_SHARED_LOSS = STOP_BY_THE_OWN_LOSS.replace(
    "        if loss", "        dist.all_reduce(loss)\n        if loss"
)
RANK_WITH_A_LOCAL_ONE = RANK_OF_A_CONFIGURATION.replace("config.device)", "config.local_device)")


@pytest.mark.parametrize(
    ("text", "slug", "line"),
    [
        (RETURN_BEFORE_A_BARRIER, "rank-dependent-exit", 9),
        (RETURN_BEFORE_THE_WRAP, "rank-dependent-exit", 11),
        (DEVICE_AFTER_A_BARRIER, "set-device-after-collective", 9),
        (A_MODULE_ITSELF, "save-whole-module", 10),
        (EPOCHS_BY_ANOTHER_NAME, "missing-set-epoch", 9),
        (LOADER_HANDED_OVER, "missing-sampler", 14),
        (OLD_OPERATION, "deprecated-dist-api", 9),
        (SUBCLASS, "dataparallel-module", 4),
        (OPTIONAL_APEX, "deprecated-library", 3),
        (RANK_OF_A_CONFIGURATION, "global-rank-as-device", 10),
        (MICRO_BATCHES, "accumulation-without-no-sync", 9),
        (MICRO_BATCHES_BY_A_HELPER, "accumulation-without-no-sync", 15),
        (STOP_BY_THE_OWN_LOSS, "rank-dependent-exit", 15),
        (MODEL_THAT_TRAIN_RETURNS, "save-whole-module", 15),
        (SHARDED_STATE_ON_ONE_RANK, "collective-in-rank-branch", 7),
    ],
)
def test_a_mistake_that_was_missed_is_found_at_its_line(text: str, slug: str, line: int) -> None:
    """One finding, of that rule, at that line."""
    findings = check_source(source_from_text(text, "script.py"))
    assert [(found.rule.slug, found.line) for found in findings] == [(slug, line)]


@pytest.mark.parametrize("text", [STOP_BY_A_SHARED_LOSS, RANK_WITH_A_LOCAL_ONE], ids=["shared loss", "a local rank"])
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    """A loss that was added up stops all ranks; where a local rank is known, `rank` may mean it."""
    assert check_source(source_from_text(text, "script.py")) == []
