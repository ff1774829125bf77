"""Forms of tests of the rank, loaders, libraries and launch lines that were once missed: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import json
import re

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

HEAD = """import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
TRAINED = """
    model = DDP(net)
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
"""
CASES = {
    "a choice and an and": HEAD + """
def train(net, batches, optimizer, scheduler, x):""" + TRAINED + """
    dist.barrier() if dist.get_rank() == 0 else None  #> collective-in-rank-branch
    dist.get_rank() == 0 and scheduler.step()  #> step-on-one-rank
    dist.get_rank() == 0 and torch.save(x, "x.pt")
    torch.save(x, "x.pt") if dist.get_rank() == 0 else print(x)
""",
    "match": HEAD + """
def speak(rank, x):
    match rank:
        case 0:
            dist.barrier()  #> collective-in-rank-branch
        case _:
            print(x)
    match x:
        case 0:
            dist.barrier()
""",
    "a walrus and a bare rank": HEAD + """
def speak(x):
    if (me := dist.get_rank()) == 0:
        dist.all_reduce(x)  #> collective-in-rank-branch
    if me > 0:
        print(x)
    rank = dist.get_rank()
    if rank:
        return
    dist.barrier()  #> collective-in-rank-branch
""",
    "a tuple from a function": HEAD + """
def start():
    dist.init_process_group("nccl")
    number = int(os.environ["RANK"])
    return number, int(os.environ["LOCAL_RANK"]), dist.get_world_size()

def main(net, x):
    me, gpu, size = start()
    torch.cuda.set_device(gpu)
    model = DDP(net.cuda(), device_ids=[gpu])
    if me == 0:
        dist.all_reduce(x)  #> collective-in-rank-branch
    other = torch.device("cuda", me)  #> global-rank-as-device
    return model, other, size
""",
    "variables of the environment one by one": HEAD + """
def main(x):
    a, b = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
    if a == 0:
        dist.barrier()  #> collective-in-rank-branch
    return b
""",
    "attributes by name": HEAD + """
def main(args, config, x):
    if getattr(args, "rank", 0) == 0:
        dist.barrier()  #> collective-in-rank-branch
    if config.get("global_rank") == 0:
        dist.barrier()  #> collective-in-rank-branch
    if getattr(args, "verbose", 0) == 0:
        dist.barrier()
""",
    "a property and a method of another object": HEAD + """
class Place:
    def __init__(self):
        self.index = int(os.environ.get("RANK", 0))

    @property
    def leads(self):
        return self.index == 0

    def speaks(self):
        return self.index == 0

def main(place, x):
    if place.leads:
        dist.barrier()  #> collective-in-rank-branch
    if place.speaks():
        dist.barrier()  #> collective-in-rank-branch
    if place.waits():
        dist.barrier()
""",
    "a star import": HEAD + """
from torch.distributed import *

def main(x):
    if get_rank() == 0:
        all_reduce(x)  #> collective-in-rank-branch
""",
    "a star import beside an own function": HEAD + """
from torch.distributed import *

def all_reduce(x):
    return x

def main(x):
    if get_rank() == 0:
        all_reduce(x)
""",
    "Trainer of transformers": HEAD + """
from transformers import Trainer

def main(model, data):
    trainer = Trainer(model=model, train_dataset=data)
    trainer.train()
    if trainer.is_world_process_zero():
        print(trainer.evaluate())  #> collective-in-rank-branch
    print(trainer.predict(data))
""",
    "tensors and states in parts": HEAD + """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(net, rank, norm):
    model = FSDP(net)
    if rank == 0:
        print(norm.full_tensor())  #> collective-in-rank-branch
        state = model.state_dict()  #> collective-in-rank-branch
    whole = net.state_dict()
    return state, whole
""",
    "Fabric": HEAD + """
from lightning.fabric import Fabric

def main(net, batches, optimizer):
    fabric = Fabric(devices=2)
    net, optimizer = fabric.setup(net, optimizer)
    for x in batches:
        net(x).mean().backward()  #> backward-past-library
        optimizer.step()
    if fabric.is_global_zero:
        fabric.barrier()  #> collective-in-rank-branch
    torch.save(net.state_dict(), "x.pt")  #> save-on-all-ranks
main(None, None, None)
""",
    "Accelerate": HEAD + """
from accelerate import Accelerator

def main(net, data, optimizer):
    accelerator = Accelerator()
    loader = DataLoader(data, 8, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(3):
        with accelerator.accumulate(net):  #> no-sync-around-loop
            for x in loader:
                accelerator.backward(net(x).mean())
                optimizer.step()
    torch.save(net.state_dict(), "x.pt")  #> save-on-all-ranks save-wrapped-state
    inner = accelerator.unwrap_model(net)
    if accelerator.is_main_process:
        torch.save(inner.state_dict(), "y.pt")
        torch.save(accelerator.get_state_dict(net), "z.pt")
    accelerator.save(inner.state_dict(), "a.pt")
main(None, None, None)
""",
    "Lightning": HEAD + """
import lightning as L

class Model(L.LightningModule):
    def validation_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("a", loss)  #> evaluation-of-share
        self.log("b", loss, sync_dist=True)
        self.log("c", self.accuracy)

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("d", loss)
        return loss

    def on_train_epoch_end(self):
        torch.save(self.state_dict(), "x.pt")  #> save-on-all-ranks
        if self.trainer.is_global_zero:
            torch.save(self.state_dict(), "y.pt")

def main(data):
    L.Trainer(devices=4, strategy="ddp").fit(Model(), data)
""",
    "memory of one rank": HEAD + """
def main(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        try:
            model(x).mean().backward()
        except torch.cuda.OutOfMemoryError:
            continue  #> rank-dependent-exit
        optimizer.step()

def agreed(net, batches, optimizer, bad):
    model = DDP(net)
    for x in batches:
        try:
            x = x.cuda()
        except torch.cuda.OutOfMemoryError:
            break
        model(x).mean().backward()
        optimizer.step()
""",
    "loaders out of a function": HEAD + """
def loaders(data, held_out):
    first = DataLoader(data, batch_size=8, shuffle=True)  #> missing-sampler
    return first, DataLoader(held_out, batch_size=8)

def train(net, data, held_out, optimizer):
    model = DDP(net)
    mine, other = loaders(data, held_out)
    for x in mine:
        model(x).mean().backward()
        optimizer.step()
    return other
""",
    "a loader in a field": HEAD + """
class Runner:
    def __init__(self, net, source, optimizer):
        self.model = DDP(net)
        self.source = source
        self.optimizer = optimizer

    def run(self):
        for x in self.source:
            self.model(x).mean().backward()
            self.optimizer.step()

def main(net, data, optimizer):
    loader = DataLoader(data, batch_size=8, shuffle=True)  #> missing-sampler
    Runner(net, loader, optimizer).run()
""",
    "loaders in a dict, and by partial": HEAD + """
from functools import partial

Loader = partial(DataLoader, num_workers=2)

def main(net, data, optimizer):
    model = DDP(net)
    loaders = {name: Loader(data[name], batch_size=8, shuffle=True) for name in data}  #> missing-sampler
    for x in loaders["train"]:
        model(x).mean().backward()
        optimizer.step()
""",
    "a stream, and a loader with a sampler": HEAD + """
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, parts, first, step):
        self.parts = parts[first::step]

    def __iter__(self):
        yield from self.parts

def main(net, parts, optimizer, rank, world):
    model = DDP(net)
    for x in DataLoader(Stream(parts, rank, world), batch_size=8):
        model(x).mean().backward()
        optimizer.step()
""",
    "shards that are no shares": HEAD + """
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        for shard in self.shards:
            yield from open(shard)

def main(net, parts, optimizer):
    model = DDP(net)
    for x in DataLoader(Stream(parts), batch_size=8):  #> iterable-unsharded
        model(x).mean().backward()
        optimizer.step()
""",
    "another sampler is told the epoch": HEAD + """
def main(net, data, held_out, optimizer):
    model = DDP(net)
    first, second = DistributedSampler(data), DistributedSampler(held_out, shuffle=False)  #> missing-set-epoch
    loader, other = DataLoader(data, sampler=first), DataLoader(held_out, sampler=second)
    for epoch in range(3):
        second.set_epoch(epoch)
        for x in loader:
            model(x).mean().backward()
            optimizer.step()
    return other
""",
    "a conversion inside the wrap": HEAD + """
def main(net, index):
    return DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(net), device_ids=[index])
""",
    "one GPU for each process": HEAD + """
def main(net):
    assert torch.cuda.device_count() == 1
    return DDP(net.to("cuda:0"), device_ids=[0])
""",
    "thawed between epochs, frozen in a step": HEAD + """
def main(net, batches, optimizer, run):
    model = DDP(net)
    for epoch in range(9):
        if epoch == 3:
            for p in model.parameters():
                p.requires_grad_(True)  #> requires-grad-after-wrap
        for x in batches:
            for p in model.parameters():
                p.requires_grad_(False)
            model(x).mean().backward()
            optimizer.step()

def freeze(part):
    for p in part.parameters():
        p.requires_grad = False

def other(net):
    freeze(net.body)
    model = DDP(net)
    freeze(model.module.body)  #> requires-grad-after-wrap
    return model
""",
    "a forward pass of the wrap comes too late": HEAD + """
def main(net, batches, optimizer):
    critic = DDP(net)
    for i, x in enumerate(batches):
        loss = critic.module(x).mean()  #> module-forward
        loss.backward()
        optimizer.step()
        if i % 5 == 0:
            critic(x).mean().backward()
            optimizer.step()
""",
    "a rank that is counted from the GPU": HEAD + """
def work(gpu, node, data):
    rank = node * 8 + gpu
    dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500", rank=rank, world_size=16)
    right = DistributedSampler(data, num_replicas=16, rank=rank, shuffle=False)
    return right, DistributedSampler(data, num_replicas=16, rank=gpu, shuffle=False)  #> sampler-rank
""",
    "a batch that is total by its help": HEAD + """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, help="total batch size over all GPUs")
parser.add_argument("--micro", type=int, help="batch size, the total is that times the ranks")
parser.add_argument("--own", type=int, help="batch size per GPU")

def main(net, data, args):
    model = DDP(net)
    sampler = DistributedSampler(data, shuffle=False)
    first = DataLoader(data, batch_size=args.batch, sampler=sampler)  #> global-batch-per-rank
    return model, first, DataLoader(data, batch_size=args.own, sampler=sampler)
""",
    "a mean by a function, before backward": HEAD + """
def mean_of(value):
    dist.all_reduce(value)
    value /= dist.get_world_size()
    return value

def main(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        loss = model(x).mean()
        loss = mean_of(loss)  #> reduction-in-graph
        loss.backward()
        optimizer.step()
""",
    "draws of a class": HEAD + """
import numpy

class Runner:
    def __init__(self, net, data):
        numpy.random.seed(7)
        self.model = DDP(net)
        self.data = data

    def batch(self):
        chosen = numpy.random.randint(0, len(self.data), 8)  #> same-batches
        return self.data[chosen]

    def run(self, optimizer):
        for _ in range(100):
            self.model(self.batch()).mean().backward()
            optimizer.step()
""",
    "batches cut by a counter": HEAD + """
def main(net, data, optimizer):
    model = DDP(net)
    for start in range(0, len(data), 8):
        model(data[start : start + 8]).mean().backward()  #> same-batches
        optimizer.step()

def shared(net, data, optimizer, rank, world):
    model = DDP(net)
    part = data[rank::world]
    for start in range(0, len(part), 8):
        model(part[start : start + 8]).mean().backward()
        optimizer.step()
""",
    "a context in which the main rank goes first": HEAD + """
def main(net, path, turns):
    dist.init_process_group("nccl")
    with turns.main_process_first():
        if not os.path.exists(path):
            torch.save(net, path)
    if not os.path.exists(path):
        torch.save(net, path)  #> prepared-by-all save-on-all-ranks
main(None, None, None)
""",
    "collectives of libraries": HEAD + """
import ignite.distributed as idist
import torch_xla.core.xla_model as xm
from detectron2.utils import comm
from mmengine.dist import barrier, is_main_process

def main(x):
    if idist.get_rank() == 0:
        idist.all_reduce(x)  #> collective-in-rank-branch
    if xm.is_master_ordinal():
        xm.rendezvous("here")  #> collective-in-rank-branch
    if comm.is_main_process():
        comm.synchronize()  #> collective-in-rank-branch
        print(comm.get_rank())
    if is_main_process():
        barrier()  #> collective-in-rank-branch
""",
    "a checkpoint that a function loads on one rank": HEAD + """
def load(model, path, rank):
    if rank == 0:
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["model"])  #> load-on-one-rank
        return state["epoch"]
    return 0

def main(net, path, rank):
    model = DDP(net, device_ids=[rank])
    return model, load(model, path, rank)
""",
    "parameters averaged every few steps": HEAD + """
def average(net):
    for p in net.parameters():
        dist.all_reduce(p.data, op=dist.ReduceOp.AVG)

def main(net, batches, optimizer):
    model = DDP(net)
    for i, x in enumerate(batches):
        with model.no_sync():
            model(x).mean().backward()
        optimizer.step()
        if i % 8 == 0:
            average(model.module)
""",
    "downloads": HEAD + """
from torchvision import datasets

def first(rank):
    if rank == 0:
        datasets.MNIST("x", download=True)
    dist.barrier()
    return datasets.MNIST("x", download=False)

def main():
    dist.init_process_group("nccl")
    data = first(dist.get_rank())
    return data, datasets.CIFAR10("y", download=True)  #> prepared-by-all
main()
""",
    "a reduction that autograd follows": HEAD + """
import torch.distributed.nn

def main(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        loss = model(x).mean()
        loss = torch.distributed.nn.all_reduce(loss)
        loss.backward()
        optimizer.step()
""",
    "a model that every rank writes": HEAD + """
def main(net, batches, optimizer, folder):""" + TRAINED + """
    model.module.save_pretrained(folder)  #> save-on-all-ranks
    if dist.get_rank() == 0:
        model.module.save_pretrained(folder)
main(None, None, None, None)
""",
    "only the sampler of another loader is told": HEAD + """
def make(train_set, held_out):
    mine = DistributedSampler(train_set)  #> missing-set-epoch
    theirs = DistributedSampler(held_out, shuffle=False)
    return DataLoader(train_set, 8, sampler=mine), DataLoader(held_out, 8, sampler=theirs)

def main(net, train_set, held_out, optimizer):
    model = DDP(net)
    batches, others = make(train_set, held_out)
    for epoch in range(9):
        others.sampler.set_epoch(epoch)
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
""",
    "the sampler of the loader itself is told": HEAD + """
def make(train_set, held_out):
    mine = DistributedSampler(train_set)
    theirs = DistributedSampler(held_out, shuffle=False)
    return DataLoader(train_set, 8, sampler=mine), DataLoader(held_out, 8, sampler=theirs)

def main(net, train_set, held_out, optimizer):
    model = DDP(net)
    batches, others = make(train_set, held_out)
    for epoch in range(9):
        batches.sampler.set_epoch(epoch)
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
""",
    "a part of the data by a stride": HEAD + """
def main(net, held_out, scheduler):
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = DataLoader(held_out[rank::size], 8)
    good = seen = 0
    with torch.no_grad():
        for x, y in batches:
            good += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    return 100 * good / seen  #> evaluation-of-share
""",
    "a part of the data that is added up": HEAD + """
def main(net, held_out):
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = DataLoader(held_out[rank::size], 8)
    counts = torch.zeros(2)
    with torch.no_grad():
        for x, y in batches:
            counts[0] += (net(x).argmax(1) == y).sum().item()
            counts[1] += len(y)
    dist.all_reduce(counts)
    good, seen = counts.tolist()
    return good / seen
""",
    "a part of a target": """
import torch

def train(model, batches, optimizer, device):
    loss_of = torch.nn.CrossEntropyLoss()
    for picture, words in batches:
        picture = picture.to(device)
        out = model(picture, words[:, :-1])
        loss_of(out.flatten(0, 1), words[:, 1:].flatten()).backward()  #> target-not-moved
        optimizer.step()
    for picture, words in batches:
        picture = picture.to(device)
        out = model(picture)
        loss_of(out.flatten(0, 1), words[:, 1:].flatten().to(device)).backward()
        optimizer.step()
""",
    "lengths may stay": """
import torch

def train(model, batches, optimizer, device):
    align = torch.nn.CTCLoss()
    for sound, text, long, short in batches:
        align(model(sound.to(device)), text.to(device), long, short).backward()
        optimizer.step()
""",
    "micro-batches under any name": HEAD + """
def train(net, batches, optimizer, args):
    model = DDP(net)
    k = args.k
    for i, x in enumerate(batches):
        (model(x).mean() / k).backward()  #> accumulation-without-no-sync
        if i % k == k - 1:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a temperature is no number of micro-batches": HEAD + """
def train(net, batches, optimizer, warm, every):
    model = DDP(net)
    for i, x in enumerate(batches):
        (model(x).mean() / warm).backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % every == 0:
            print(i)
""",
    "a layer that is moved where it is made": HEAD + """
def main(net, width):
    model = DDP(net)
    model.module.head = torch.nn.Linear(8, width).cuda()  #> params-after-wrap
    model.module.loss = torch.nn.CrossEntropyLoss().cuda()
    return model
""",
    "a helper that goes past the wrap": HEAD + """
class Run:
    def __init__(self, net, optimizer):
        self.model = DDP(net)
        self.optimizer = optimizer

    def cost(self, x, y):
        inner = self.model.module
        return inner["head"](inner["body"](x), y)  #> module-forward

    def epoch(self, batches):
        for x, y in batches:
            cost = self.cost(x, y)
            cost.backward()
            self.optimizer.step()
""",
    "a helper that only looks past the wrap": HEAD + """
class Run:
    def __init__(self, net, optimizer):
        self.model = DDP(net)
        self.optimizer = optimizer

    def look(self, x):
        inner = self.model.module
        return inner.head.describe(x)

    def epoch(self, batches):
        for x, y in batches:
            shown = self.look(x)
            print(shown)
            self.model(x).mean().backward()
            self.optimizer.step()
""",
    "one GPU for what is loaded": HEAD + """
def main(net, path):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    state = torch.load(path, map_location="cuda:0")  #> load-without-map-location
    other = torch.load(path, map_location=torch.device("cuda:0"))  #> hardcoded-device
    net.load_state_dict(torch.load(path, map_location="cuda"))
    if dist.get_rank() == 0:
        print(torch.load(path, map_location="cuda:0").keys())
    return state, other
main(None, None)
""",
    "the main rank leaves by itself": HEAD + """
import sys

def train(net, batches, optimizer, judge):
    model = DDP(net)
    worse = 0
    for epoch in range(9):
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            worse += judge(model.module)
            if worse > 3:
                sys.exit(0)  #> rank-dependent-exit
    if dist.get_rank() == 0:
        if worse:
            sys.exit(1)
""",
    "a helper that shards": HEAD + """
from torch.distributed.fsdp import fully_shard

def share(net, mesh):
    for part in net.blocks:
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)

def main(net, other, mesh):
    optimizer = torch.optim.AdamW(net.parameters())  #> optimizer-before-shard
    net = share(net, mesh)
    other = share(other, mesh)
    later = torch.optim.SGD(other.parameters())
    return net, optimizer, later
""",
    "clipping past an accelerator": """
import torch
from accelerate import Accelerator

def train(net, batches, optimizer):
    speed = Accelerator(mixed_precision="fp16")
    net, batches, optimizer = speed.prepare(net, batches, optimizer)
    for x in batches:
        speed.backward(net(x).mean())
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  #> clip-before-unscale
        optimizer.step()
""",
    "clipping past an accelerator that does not scale": """
import torch
from accelerate import Accelerator

def train(net, batches, optimizer):
    speed = Accelerator(mixed_precision="bf16")
    net, batches, optimizer = speed.prepare(net, batches, optimizer)
    for x in batches:
        speed.backward(net(x).mean())
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
""",
    "a handle that is dropped": HEAD + """
def average(net, size):
    for p in net.parameters():
        p.grad /= size
        dist.all_reduce(p.grad, async_op=True)  #> async-result-unwaited
""",
    "handles that are kept": HEAD + """
def average(net, size):
    handles = []
    for p in net.parameters():
        p.grad /= size
        handles.append(dist.all_reduce(p.grad, async_op=True))
    for handle in handles:
        handle.wait()
""",
    "Lightning without its sampler": """
import lightning as L
import torch
from torch.utils.data import DataLoader, random_split

class Net(L.LightningModule):
    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            print(self.all_gather(self.total))  #> collective-in-rank-branch
        both = self.all_gather(self.total)
        if self.trainer.is_global_zero:
            print(both)

class Data(L.LightningDataModule):
    def setup(self, stage):
        self.train, self.val = random_split(self.whole, [8, 2])  #> unseeded-split

    def train_dataloader(self):
        return DataLoader(self.train, 8, shuffle=True)  #> missing-sampler

    def val_dataloader(self):
        return DataLoader(self.val, 8)

L.Trainer(devices=4, strategy="ddp", use_distributed_sampler=False).fit(Net(), Data())
""",
    "Lightning as it should be": """
import lightning as L
import torch
from torch.utils.data import DataLoader, random_split

class Data(L.LightningDataModule):
    def setup(self, stage):
        self.train, self.val = random_split(self.whole, [8, 2], generator=torch.Generator().manual_seed(1))

    def train_dataloader(self):
        return DataLoader(self.train, 8, shuffle=True)

L.Trainer(devices=4, strategy="ddp").fit(Net(), Data())
""",
    "a Trainer that saves on its own": HEAD + """
from transformers import Trainer

class Mine(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        torch.save(self.model.state_dict(), os.path.join(output_dir, "x.pt"))  #> save-on-all-ranks

class Other(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        if self.args.should_save:
            torch.save(self.model.state_dict(), os.path.join(output_dir, "x.pt"))

local_rank = int(os.environ.get("LOCAL_RANK", 0))
""",
    "a module that is copied to all GPUs and saved": """
import torch

def main(net, path):
    net = torch.nn.DataParallel(net).cuda()  #> dataparallel-module
    torch.save(net, path)  #> save-whole-module
    torch.save(net.module.state_dict(), path)
""",
    "shards of ZeRO": HEAD + """
import deepspeed

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 3}}

def main(net, path):
    engine, *_ = deepspeed.initialize(model=net, config=CONFIG)
    engine.save_checkpoint(path)
    if dist.get_rank() == 0:
        torch.save(engine.module.state_dict(), path)  #> shards-of-one-rank
""",
    "ZeRO that leaves the weights whole": HEAD + """
import deepspeed

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}

def main(net, path):
    engine, *_ = deepspeed.initialize(model=net, config=CONFIG)
    if dist.get_rank() == 0:
        torch.save(engine.module.state_dict(), path)
""",
    "a free port of each rank": HEAD + """
from ports import find_free_port

def work(rank, size):
    port = find_free_port()
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)  #> port-drawn-by-each-rank
    dist.init_process_group("gloo", rank=rank, world_size=size)

def alone():
    os.environ["MASTER_PORT"] = str(find_free_port())
    dist.init_process_group("gloo", rank=0, world_size=1)
""",
}  # fmt: skip


def expected(text: str) -> list[tuple[str, int]]:
    """What the marks of a text say."""
    lines = enumerate(text.splitlines(), 1)
    return sorted((slug, line) for line, part in lines for slug in part.partition("#>")[2].split())


@pytest.mark.parametrize("name", CASES)
def test_what_is_marked_is_found_and_nothing_else(name: str) -> None:
    """Mistakes and look-alikes side by side in one file."""
    findings = check_source(source_from_text(CASES[name], "train.py"))
    assert sorted((found.rule.slug, found.line) for found in findings) == expected(CASES[name])


LINES = {
    "a port that is counted": "export MASTER_PORT=$((70000 + SLURM_JOB_ID % 1000))  #> invalid-port\n"
    "torchrun train.py\n",
    "a port in range": "port=$((20000 + SLURM_JOB_ID % 1000))\ntorchrun --master-port $port train.py\n",
    "an address by a variable": "NODES=2\nexport HOST=127.0.0.1  #> loopback-for-nodes\n"
    "torchrun --nnodes $NODES --rdzv-backend c10d --rdzv-endpoint $HOST:29500 train.py\n",
    "GPUs of a scheduler": "#!/bin/bash\n#SBATCH --gres=gpu:2\n"
    "torchrun --nproc-per-node 4 train.py  #> more-ranks-than-gpus\n",
    "a port inside quoted words": "PORT=80000  #> invalid-port\nfor h in a b; do\n"
    'ssh $h "cd x && python -m torch.distributed.launch --master_port=$PORT train.py"  #> deprecated-dist-api\ndone\n',
    "a port for something else": 'SEED_PORT=80000\nssh $h "torchrun --master_port=$PORT train.py --seed $SEED_PORT"\n',
    "the old launcher in a variable": 'RUN="python -m torch.distributed.launch --use_env"  #> deprecated-dist-api\n'
    "$RUN train.py\n",
    "the old launcher in a text": 'echo "python -m torch.distributed.launch is old"\ntorchrun train.py\n',
    "nodes that are counted elsewhere": "torchrun --nnodes=$POD_COUNT --rdzv-endpoint=localhost:29400 train.py"
    "  #> loopback-for-nodes\n",
    "nodes with a default of one": "NNODES=${NNODES:-1}\n"
    "torchrun --nnodes=$NNODES --rdzv-endpoint=localhost:29400 train.py\n",
    "nodes for ranks": "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n"
    "export WORLD_SIZE=$SLURM_NNODES  #> world-size-of-one-node\nsrun python train.py\n",
    "one task on each node": "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\n"
    "export WORLD_SIZE=$SLURM_NNODES\nsrun python train.py\n",
    "a script of the first node": "#!/bin/bash\n#SBATCH -N 2\n# no srun here\n"
    "torchrun --nnodes 2 --rdzv-endpoint $HOST:29500 train.py  #> launcher-on-first-node\n",
    "a script of one node": "#!/bin/bash\n#SBATCH -N 1\ntorchrun --nnodes 1 train.py\n",
    "a type of GPU": "#!/bin/bash\n#SBATCH --gres=gpu:a100:4\ntorchrun --nproc-per-node 4 train.py\n",
}


@pytest.mark.parametrize("name", LINES)
def test_what_is_marked_is_found_in_launch_lines(name: str) -> None:
    """Numbers and addresses that stand behind variables."""
    text = re.sub(r"  #>[^\n]*", "", LINES[name])
    findings = check_source(source_from_text(text, "run.sh"))
    assert sorted((found.rule.slug, found.line) for found in findings) == expected(LINES[name])


def test_a_script_that_a_cell_writes_is_checked() -> None:
    """At its cell and line; it is a script of its own, and one that does not parse hides nothing else."""
    script = "%%writefile train.py\n" + HEAD + "\ndef main(x):\n    if dist.get_rank() == 0:\n        dist.barrier()\n"
    cells = ["x = 1", script, "%%writefile gap.py\ndef main(:\n", "%%writefile notes.txt\nif not python"]
    book = {"cells": [{"cell_type": "code", "source": text} for text in cells]}
    (found,) = check_source(source_from_text(json.dumps(book), "lesson.ipynb"))
    assert (found.rule.slug, found.cell, found.line) == ("collective-in-rank-branch", 2, 10)
    assert found.fix is None
