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


@pytest.mark.parametrize(
    ("text", "slug", "line"),
    [
        (RETURN_BEFORE_A_BARRIER, "rank-dependent-exit", 9),
        (RETURN_BEFORE_THE_WRAP, "rank-dependent-exit", 11),
        (DEVICE_AFTER_A_BARRIER, "set-device-after-collective", 9),
        (A_MODULE_ITSELF, "save-whole-module", 10),
    ],
)
def test_a_mistake_that_was_missed_is_found_at_its_line(text: str, slug: str, line: int) -> None:
    """One finding, of that rule, at that line."""
    findings = check_source(source_from_text(text, "script.py"))
    assert [(found.rule.slug, found.line) for found in findings] == [(slug, line)]
