"""Correct programs that look like the wrong ones: for each rule those in which it must stay silent."""

LOOK_ALIKES = {
    "RW101": """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(args, dataset, model, criterion, optimizer):
    if args.distributed:
        model = DDP(model)
        sampler = torch.utils.data.DistributedSampler(dataset, shuffle=False)
        loader = torch.utils.data.DataLoader(dataset, sampler=sampler)
    else:
        loader = torch.utils.data.DataLoader(dataset, shuffle=True)
    for x, y in loader:
        criterion(model(x), y).backward()
""",
    "RW102": """
import torch

def make_loader(args, dataset):
    sampler = torch.utils.data.distributed.DistributedSampler(dataset) if args.distributed else None
    return torch.utils.data.DataLoader(dataset, shuffle=(sampler is None), sampler=sampler)
""",
    "RW103": """
import torch
from torch.utils.data.distributed import DistributedSampler

def train(dataset, val_set, model, optimizer):
    loader = torch.utils.data.DataLoader(dataset, sampler=DistributedSampler(dataset))
    val = torch.utils.data.DataLoader(val_set, sampler=DistributedSampler(val_set, shuffle=False))
    for epoch in range(10):
        loader.sampler.set_epoch(epoch)
        for x in loader:
            model(x).sum().backward()
""",
    "RW104": """
import torch
import torch.distributed as dist

def main(dataset, seed):
    dist.init_process_group("nccl")
    torch.manual_seed(seed)
    return torch.utils.data.random_split(dataset, [900, 100])
""",
    "RW105": """
import torch
import torch.distributed as dist

def make_sampler(dataset):
    local_rank = dist.get_rank()
    return torch.utils.data.distributed.DistributedSampler(dataset, rank=local_rank)
""",
    "RW401": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(args, path, tensor, group):
    if args.local_rank not in (-1, 0):
        dist.barrier()
    data = open(path).read()
    if args.local_rank == 0:
        dist.barrier()
    if dist.get_rank() == 0:
        dist.broadcast(tensor, src=0)
    else:
        dist.broadcast(tensor, src=0)
    if args.local_rank != -1:
        dist.barrier()
    if dist.get_rank() == 0:
        dist.all_reduce(tensor, group=group)
    return data
""",
    "RW402": """
import torch.distributed as dist

def train(model, loader, logger):
    for x in loader:
        model(x).sum().backward()
        if dist.get_rank() == 0:
            for name in logger:
                if name == "loss":
                    break

def save(model):
    if dist.get_rank() != 0:
        return
    model.save()
""",
    "RW403": """
import torch.distributed as dist

class Job:
    @property
    def is_main(self):
        return dist.get_rank() == 0

    def save(self):
        if self.is_main and dist.is_initialized():
            print("saved")

def run(is_main):
    if is_main:
        print("on the main rank")
""",
    "RW404": """
import torch.distributed as dist

def total(values):
    handles = []
    for value in values:
        handles.append(dist.all_reduce(value, async_op=True))
    handle = dist.all_reduce(values[0], async_op=True)
    handle.wait()
    print(values[0].item())
""",
    "RW405": """
import torch.distributed as dist

def train(model, loader, epochs):
    for epoch in range(epochs):
        for x in loader:
            model(x).sum().backward()
        dist.barrier()
""",
    "RW406": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, held_out):
    model = DDP(net, broadcast_buffers=False)
    for x in loader:
        model(x).sum().backward()
    print(model(held_out))
    if dist.get_rank() == 0:
        print(net(held_out))
""",
    "RW901": """
import torch
net = torch.nn.DataParallel(torch.nn.Linear(1, 1))  # rankwise: ignore[RW210] one process
""",
}
