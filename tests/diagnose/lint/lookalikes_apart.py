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
    "RW411": HEAD + """
def main(net, loader, optimizer, find):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    model = DDP(net.cuda())
    start, best, name, late = 0, 0, None, False
    start = 0
    if rank == 0:
        start = find("last.pt")
    box = [start]
    dist.broadcast_object_list(box)
    start = box[0]
    name = None
    if rank == 0:
        name = find("best.pt")
        print(torch.load(name, map_location="cpu").keys())
    path = None
    if os.path.exists("last.pt"):
        path = "last.pt"
    if path is not None:
        model.module.load_state_dict(torch.load(path, map_location="cpu"))
    for _ in range(start, 10):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
    return name, best, late
""",
    "RW412": HEAD + """
def divided(loss, rank):
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    shown /= dist.get_world_size()
    if rank == 0:
        print(f"loss {shown.item()}")

def divided_before(loss, size):
    shown_loss = loss.detach() / size
    dist.all_reduce(shown_loss)
    print(shown_loss.item())

def divided_where_shown(loss, size):
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    print(f"loss {shown.item() / size}")

def over_counts(losses, counts):
    loss_sum, seen = losses.sum(), counts.sum()
    dist.all_reduce(loss_sum)
    dist.all_reduce(seen)
    print(loss_sum / seen)

def handed_back(loss):
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    print("reduced", mean.device)
    return mean

def renamed(loss, size):
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    value = shown.item() / size
    print(shown.device, value)
""",
    "RW413": HEAD + """
def shown(net, files, rank, world_size, optimizer, batches):
    model = DDP(net)
    mine = files[rank::world_size]
    for file in mine:
        print(file)
    for x in batches:
        model(x).sum().backward()
        optimizer.step()

def joined_up(net, files, rank, world_size, optimizer):
    model = DDP(net)
    mine = files[rank::world_size]
    rows = torch.cat([torch.load(os.path.join("data", file), map_location="cpu") for file in mine])
    for i in torch.randperm(1000):
        model(rows[i]).sum().backward()
        optimizer.step()
""",
    "RW508": HEAD + """
import contextlib
from pathlib import Path

def main(net, out):
    dist.init_process_group("nccl")
    os.makedirs(out, exist_ok=True)
    Path(out).mkdir(parents=True, exist_ok=True)
    if not os.path.exists(out):
        os.makedirs(out)
    os.makedirs(os.path.join(out, f"rank{dist.get_rank()}"))
    with contextlib.suppress(FileExistsError):
        os.mkdir(out)
    try:
        os.mkdir(out)
    except FileExistsError:
        pass
    if dist.get_rank() == 0:
        os.makedirs("figures")
    return DDP(net)
""",
}  # fmt: skip
