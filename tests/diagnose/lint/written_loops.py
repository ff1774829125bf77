"""Forms of loops, wraps, streams and reductions that were once missed: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

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
    "a mean by a function, before backward": HEAD + """
def mean_of(value):
    dist.all_reduce(value)
    value /= dist.get_world_size()
    return value

def main(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        loss = model(x).mean()
        loss = mean_of(loss)
        loss.backward()
        optimizer.step()
""",
    "a context in which the main rank goes first": HEAD + """
def main(net, path, turns):
    dist.init_process_group("nccl")
    with turns.main_process_first():
        if not os.path.exists(path):
            torch.save(net, path)
    if not os.path.exists(path):
        torch.save(net, path)  #> prepared-by-all
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
dist.init_process_group("gloo")
def main(net, batches, optimizer, folder):""" + TRAINED + """
    model.module.save_pretrained(folder)  #> save-on-all-ranks
    if dist.get_rank() == 0:
        model.module.save_pretrained(folder)
main(None, None, None, None)
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
}  # fmt: skip
