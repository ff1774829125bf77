"""Correct programs that look like the wrong ones, for rules of what ranks write, open, set and count apart."""

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
LOOK_ALIKES = {
    "RW221": HEAD + """
class Trainer:
    def __init__(self, net):
        self.model = net
        self.load()
        self.model = DDP(self.model)
        self.model.stage = 1

    def load(self):
        self.model.load_pretrained("x")

    def save(self):
        print(self.model.stage, self.model.module.config)
        self.model.module.save_pretrained("x")
        self.model.zero_grad(set_to_none=True)

class Other:
    def __init__(self, net):
        self.model = net

    def save(self):
        self.model.save_pretrained("x")

def some_runs(net, distributed):
    if distributed:
        net = DDP(net)
    net.generate()

def unwrapped(net):
    model = DDP(net)
    if isinstance(model, DDP):
        model = model.module
    model.generate()

def asked(net):
    model = DDP(net)
    if hasattr(model, "generate"):
        model.generate()
    try:
        model.generate()
    except AttributeError:
        net.generate()
""",
    "RW316": HEAD + """
import wandb
from torch.utils.tensorboard import SummaryWriter

class Curves:
    def __init__(self, folder):
        self.writer = SummaryWriter(folder)

    def add(self, step, value):
        self.writer.add_scalar("loss", value, step)

def main(net, folder, group):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    wandb.init(project="scan", mode="online" if rank == 0 else "disabled")
    wandb.init(project="scan", name=f"rank {rank}")
    wandb.init(project="scan", group=group)
    mine = SummaryWriter(os.path.join(folder, str(rank)))
    mine.add_scalar("rank", rank, 0)
    curves = Curves(folder) if rank == 0 else None
    writer = SummaryWriter(folder) if rank == 0 else None
    if writer is not None:
        writer.add_scalar("loss", 1, 0)
    return DDP(net), curves
""",
}  # fmt: skip
