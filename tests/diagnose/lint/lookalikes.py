"""Correct programs that look like the wrong ones, for rules of data and models."""

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
    "RW106": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number, line in enumerate(open("lines")):
            if number % self.world_size == self.rank:
                yield line

class Rows(torch.utils.data.Dataset):
    pass

def main(net):
    return DDP(net), torch.utils.data.DataLoader(Lines()), torch.utils.data.DataLoader(Rows())
""",
    "RW107": """
import os

def stage(files, names):
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return files[local_rank::local_size], names[local_rank::2]
""",
    "RW118": """
import os
import torch.distributed as dist
from torch.utils.data import DistributedSampler

def make_samplers(train, held_out, args):
    seed = args.seed + int(os.environ["RUN"])
    rank = dist.get_rank()
    dist.init_process_group("nccl")
    shuffled = DistributedSampler(train, dist.get_world_size(), rank, True, seed)
    return shuffled, DistributedSampler(held_out, shuffle=False, seed=args.seed + rank)
""",
    "RW108": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def make_loader(dataset, sampler, global_batch_size, batch_size):
    global_batch_size = global_batch_size // dist.get_world_size()
    first = torch.utils.data.DataLoader(dataset, batch_size=global_batch_size, sampler=sampler)
    return first, torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler)
""",
    "RW109": """
import os
import torch
import torch.distributed as dist

def make_loader(dataset, sampler):
    dist.init_process_group("nccl")
    return torch.utils.data.DataLoader(dataset, sampler=sampler, num_workers=min(4, os.cpu_count()))
""",
    "RW110": """
import torch

def make_sampler(train_set):
    return torch.utils.data.distributed.DistributedSampler(train_set)
""",
    "RW111": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main(net, rank, seed):
    torch.manual_seed(seed)
    net = DDP(net)
    torch.manual_seed(seed + rank)
    return net
""",
    "RW112": """
import torch

def train(model, dataset, device, options):
    for x in torch.utils.data.DataLoader(dataset, **options):
        model(x.to(device, non_blocking=True)).sum().backward()
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
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def worker(rank, net):
    dist.init_process_group("nccl", rank=rank, world_size=torch.cuda.device_count())
    torch.cuda.set_device(rank)
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    return DDP(net.cuda(), device_ids=[rank])

def meet(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("nccl", rank=rank, world_size=size)
    torch.cuda.set_device(torch.device("cuda", dist.get_rank()))

def start(size):
    torch.multiprocessing.spawn(meet, args=(size,), nprocs=size)
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
    from torch import amp
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

def restart(args, local_rank):
    dist.init_process_group("nccl")
    if local_rank != 0:
        dist.barrier()
    if args.distributed:
        torch.cuda.set_device(local_rank)
""",
}
