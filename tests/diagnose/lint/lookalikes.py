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
    "RW201": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(args, net, device, other):
    net = net.to(device)
    if args.distributed:
        model = DDP(net, device_ids=[device])
    else:
        model = torch.nn.DataParallel(net)
        model.to(device)
    model = model.to(memory_format=torch.channels_last)
    other.to(device)
    return model.to(device)
""",
    "RW202": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(net, first, second, other):
    net.encoder.to(first)
    net.decoder.to(second)
    other.head.cuda()
    other.cuda()
    return DDP(net), DDP(other)
""",
    "RW203": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(net, teacher):
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = DDP(net)
    teacher = torch.nn.SyncBatchNorm.convert_sync_batchnorm(teacher)
    return net, teacher
""",
    "RW204": """
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
import torch

def prepare(net, options):
    torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, **options)
    return DDP(net, timeout=30)
""",
    "RW205": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(net):
    net.head = torch.nn.Linear(8, 2)
    model = DDP(net)
    model.criterion = torch.nn.CrossEntropyLoss()
    other = torch.nn.Linear(8, 2)
    other.head = torch.nn.Linear(2, 2)
    return model
""",
    "RW206": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, held_out):
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
        with torch.no_grad():
            model.module(held_out)

def evaluate(model, loader):
    for x in loader:
        model.module(x)
""",
    "RW207": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(net, teacher):
    for parameter in net.encoder.parameters():
        parameter.requires_grad = False
    model = DDP(net)
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    return model
""",
    "RW208": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(args, net):
    model = torch.nn.DataParallel(net, device_ids=[0, 1])
    return DDP(net, device_ids=[args.local_rank] if args.cuda else None)
""",
    "RW209": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(args, net):
    return DDP(net, find_unused_parameters=args.unused)
""",
    "RW210": """
import torch

def inner(net):
    return net.module if isinstance(net, torch.nn.DataParallel) else net
""",
    "RW211": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main(args, net, path):
    if args.local_rank == -1:
        device = torch.device("cuda:0")
    else:
        device = torch.device("cuda", args.local_rank)
        dist.init_process_group("nccl")
    where = "cuda:0" if not args.distributed else f"cuda:{args.local_rank}"
    return DDP(net.to(device)), torch.load(path, map_location="cuda:0"), where
""",
    "RW212": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def worker(rank, net):
    dist.init_process_group("nccl", rank=rank, world_size=torch.cuda.device_count())
    torch.cuda.set_device(rank)
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    return DDP(net.cuda(), device_ids=[rank])
""",
    "RW213": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main(net, local_rank):
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    return DDP(net.cuda())
""",
    "RW214": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare():
    return DDP(torch.nn.Sequential(torch.nn.LayerNorm(3)))
""",
    "RW215": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(args, net):
    return DDP(net, broadcast_buffers=True)
""",
    "RW216": """
try:
    from apex import amp
    import apex.parallel
except ImportError:
    amp = None
""",
    "RW217": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from torch.utils.checkpoint import checkpoint

def prepare(net, block, x):
    model = DDP(net)
    return model, checkpoint(block, x, use_reentrant=True)
""",
    "RW218": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(net, options):
    return DDP(net, **options)
""",
    "RW219": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main(args, local_rank):
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    dist.barrier()
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
