"""Correct programs that look like the wrong ones, for rules of steps and checkpoints."""

LOOK_ALIKES = {
    "RW301": """
import torch

def step(model, loss, optimizer, scaler, fp16):
    if fp16:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    else:
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)

def other(model, loss, optimizer, scaler, fp16):
    if fp16:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    "RW302": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def accumulate(net, batches, compute):
    model = DDP(net)
    for x in batches:
        with model.no_sync():
            compute(x).backward()
    for x in batches:
        with model.no_sync():
            loss = model(x).sum()
            loss.backward()
""",
    "RW303": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, optimizer, log_every):
    model = DDP(net)
    for i, x in enumerate(loader):
        model(x).sum().backward()
        optimizer.step()
        if i % log_every == 0:
            print(i)
""",
    "RW304": """
def train(model, loader, optimizer, scheduler, accumulation_steps):
    for i, x in enumerate(loader):
        model(x).sum().backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
""",
    "RW305": """
import torch

def train(model, loader, criterion, device):
    for i, (x, y, name) in enumerate(loader):
        x = x.to(device)
        y = y.to(device)
        criterion(model(x), y).backward()
        print(name)
    for x, y in loader:
        criterion(model(x), y).backward()
""",
    "RW306": """
import torch

def make_loss(model, weights, device):
    model.cuda()
    first = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0], device=device))
    second = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0])).to(device)
    return first, second, torch.nn.MSELoss(), torch.nn.BCEWithLogitsLoss(pos_weight=weights)
""",
    "RW307": """
import time
import torch

def train(model, x):
    x = x.cuda()
    start = time.time()
    model(x).sum().backward()
    print("epoch took", time.time() - start)

def benchmark(model, x):
    start = time.time()
    print(model(x.cuda()).sum().item())
    return time.time() - start
""",
    "RW308": """
import torch

def step(model, x):
    with torch.amp.autocast("cuda"), torch.autocast("cuda"):
        return model(x)
""",
    "RW309": """
import torch

def step(model, x, first, second):
    first.zero_grad()
    model(x).sum().backward()
    first.step()
    second.zero_grad()
    model(x).sum().backward()
    second.step()
    first.zero_grad()
""",
    "RW310": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def report(loss, epoch):
    print(loss.item())
    if dist.get_rank() == 0:
        print(epoch)
""",
    "RW501": """
import io
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def save_checkpoint(state, path):
    torch.save(state, path)

def main(args, net, path):
    dist.init_process_group("nccl")
    model = DDP(net)
    torch.save(model.module.state_dict(), f"optimizer-{args.rank}.pt")
    buffer = io.BytesIO()
    torch.save(model.module.state_dict(), buffer)
    is_best = True
    if not args.multiprocessing_distributed or args.rank % args.ngpus_per_node == 0:
        torch.save(model.module.state_dict(), path)
    if dist.get_rank() == 0:
        save_checkpoint(model.module.state_dict(), path)
    if args.rank != 0:
        return
    torch.save(is_best, path)
""",
    "RW502": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def save(net, path, model):
    wrapped = DDP(net)
    if dist.get_rank() == 0:
        torch.save({"model": wrapped.module.state_dict()}, path)
        torch.save(model, path)

def save_features(net, batch, path):
    features = net(batch)
    features = features.to("cpu")
    torch.save(features.cpu(), path)
""",
    "RW503": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def save(args, net, path, ema):
    model = net
    if args.distributed:
        model = DDP(net)
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), path)
        torch.save(ema.state_dict(), path)
""",
    "RW504": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def resume(net, path, device):
    model = DDP(net.cuda())
    model.load_state_dict(torch.load(path, device))
    if dist.get_rank() == 0:
        print(torch.load(path).keys())
""",
    "RW505": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def resume(net, path, optimizer):
    if dist.get_rank() == 0:
        net.load_state_dict(torch.load(path, map_location="cpu"))
    model = DDP(net)
    optimizer.load_state_dict(torch.load(path, map_location="cpu"))
    return model
""",
    "RW506": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def reload(model, path, other):
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
        torch.load(path)
    return torch.load(other)
""",
}
