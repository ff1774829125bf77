"""What a value is made of: parts of a batch, weights that are computed, seeds handed over, numbers behind lists.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected. All invented.
"""

from __future__ import annotations

import pytest

HEAD = """
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, random_split
"""
BATCHES = {
    "a part by its key": """
def train(model, batches, loss_of, device):
    criterion = torch.nn.L1Loss()
    for batch in batches:
        seen = batch["scan"].to(device)
        wanted = batch["age"]
        criterion(model(seen), wanted).backward()  #> target-not-moved
""",
    "a part where the loss takes it": """
def train(model, batches, device):
    for index, item in enumerate(batches):
        out = model(item["scan"].to(device))
        F.cross_entropy(out, item["kind"]).backward()  #> target-not-moved
""",
    "a part by its number": """
def train(model, batches, criterion, device):
    for sample in batches:
        criterion(model(sample[0].cuda()), sample[1].long()).backward()  #> target-not-moved
""",
    "parts by their names, under a bar": """
def train(model, batches, criterion, device, tqdm):
    for index, (volume, mask) in enumerate(tqdm(batches)):
        volume = volume.to(device)
        loss = criterion(model(volume), mask)  #> target-not-moved
        loss.backward()
""",
    "a batch that is taken apart": """
def train(model, batches, criterion, device):
    for batch in batches:
        volume, mask = batch
        volume = volume.cuda(non_blocking=True)
        criterion(model(volume), mask).backward()  #> target-not-moved
""",
    "parts that are all moved": """
def train(model, batches, criterion, device):
    for batch in batches:
        volume, mask = [part.to(device) for part in batch]
        criterion(model(volume), mask).backward()
    for batch in batches:
        batch = {key: part.to(device) for key, part in batch.items()}
        criterion(model(batch["scan"].to(device)), batch["mask"]).backward()
    for batch in batches:
        volume, mask = batch
        volume, mask = volume.to(device), mask.to(device)
        criterion(model(volume), mask).backward()
""",
    "a batch that is moved elsewhere": """
def train(model, batches, criterion, device, move):
    for batch in batches:
        move(batch, device)
        criterion(model(batch["scan"].to(device)), batch["mask"]).backward()
    for batch in batches:
        batch.to(device)
        criterion(model(batch["scan"].to(device)), batch["mask"]).backward()
""",
    "a loss on the CPU": """
def train(model, batches, criterion, device):
    for batch in batches:
        criterion(model(batch["scan"].to(device)).cpu(), batch["mask"]).backward()
""",
}
WEIGHTS = {
    "computed from a tensor": """
def build(counts, device, net):
    share = torch.tensor(counts) / len(counts)
    odds = (1 - share) / share
    return net.cuda(), torch.nn.BCEWithLogitsLoss(pos_weight=odds)  #> loss-weight-device
""",
    "of an array, with another type": """
def build(counts, net):
    weights = torch.from_numpy(1 / np.array(counts)).float()
    return net.cuda(), torch.nn.CrossEntropyLoss(weights)  #> loss-weight-device
""",
    "in a function": """
def train(model, batches):
    weight = torch.ones(4)
    for x, y in batches:
        x, y = x.cuda(), y.cuda()
        F.cross_entropy(model(x), y, weight=weight).backward()  #> loss-weight-device
""",
    "from a list, by a method": """
def build(net):
    return net.cuda(), torch.nn.NLLLoss(weight=torch.tensor([1, 9]).float().sqrt())  #> loss-weight-device
""",
    "computed and moved": """
def build(counts, device, net):
    share = torch.tensor(counts) / len(counts)
    odds = ((1 - share) / share).to(device)
    scaled = torch.tensor(counts, device=device) * 2
    net.cuda()
    loss = torch.nn.CrossEntropyLoss(torch.tensor(counts).float())
    return torch.nn.BCEWithLogitsLoss(pos_weight=odds), torch.nn.NLLLoss(weight=scaled), loss.to(device)
""",
    "moved later, or of something that is not seen": """
def build(counts, other, device, net):
    share = torch.tensor(counts)
    share = share.to(device)
    net.cuda()
    return torch.nn.BCEWithLogitsLoss(pos_weight=share), torch.nn.NLLLoss(weight=torch.tensor(counts) * other)
""",
}
SPLITS = {
    "seeded by a function, with the rank": """
def seed_all(number):
    np.random.seed(number)
    torch.manual_seed(number)

def main(data, net):
    dist.init_process_group("gloo")
    seed_all(7 + dist.get_rank())
    first, rest = random_split(data, [90, 10])  #> unseeded-split
    return DDP(net)
""",
    "seeded by a number that holds the rank": """
def main(data, net, args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed = args.seed + rank
    torch.manual_seed(seed)
    first, rest = random_split(data, [90, 10])  #> unseeded-split
    return DDP(net)
""",
    "seeded by a function, alike": """
def seed_all(number):
    np.random.seed(number)
    torch.manual_seed(number)

def main(data, net, args):
    dist.init_process_group("gloo")
    seed_all(args.seed)
    first, rest = random_split(data, [90, 10])
    return DDP(net)
""",
    "seeded alike, and then apart": """
def main(data, net, args):
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    first, rest = random_split(data, [90, 10])
    torch.manual_seed(args.seed + dist.get_rank())
    return DDP(net)
""",
}
SHARE = """
def judge(model, held_out):
    batches = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    kept, other = [], []
    with torch.no_grad():
        for x, y in batches:
            kept.append(model(x))
            other.append(y)
"""
EVALUATIONS = {
    "the mean of what is computed from lists": SHARE
    + """
    kept, other = torch.cat(kept), torch.cat(other)
    found = (kept @ other.T).argmax(1) == torch.arange(len(kept))
    return found.float().mean().item()  #> evaluation-of-share
""",
    "the mean of a list of any name": SHARE
    + """
    return np.mean(kept)  #> evaluation-of-share
""",
    "an error of two lists": SHARE
    + """
    answers = torch.cat(kept).squeeze(1)
    wanted = torch.cat(other)
    print("mae", (answers - wanted).abs().mean())  #> evaluation-of-share
""",
    "gathered first": SHARE
    + """
    kept = torch.cat(kept)
    parts = [torch.empty_like(kept) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, kept)
    return torch.cat(parts).mean().item()
""",
    "centred, not averaged": SHARE
    + """
    kept = torch.cat(kept)
    return kept - kept.mean(dim=0)
""",
    "how long it took here": SHARE.replace("kept", "times")
    + """
    return np.mean(times)
""",
}
DEVICES = {
    "all GPUs, by a variable": """
def main(net):
    gpus = list(range(torch.cuda.device_count()))
    return DDP(net.cuda(gpus[0]), device_ids=gpus)  #> device-ids-mismatch
""",
    "all GPUs, counted in a list": """
def main(net, rank):
    ids = [number for number in range(torch.cuda.device_count())]
    return DDP(net.cuda(rank), device_ids=ids, output_device=rank)  #> device-ids-mismatch
""",
    "two GPUs, by a variable": """
def main(net, rank):
    ids = [0, 1]
    return DDP(net.cuda(rank), device_ids=ids)  #> device-ids-mismatch
""",
    "one of two lists": """
def main(net, rank, several):
    ids = [0, 1]
    if several:
        ids = [rank]
    return DDP(net.cuda(rank), device_ids=ids)
""",
    "its own GPU, by a variable": """
def main(net, rank):
    ids = [rank] if torch.cuda.is_available() else None
    mine = [rank]
    return DDP(net.cuda(rank), device_ids=ids), DDP(net.cuda(rank), device_ids=mine)
""",
    "objects before the device": """
import os

def main(net, local_rank):
    dist.init_process_group("nccl")
    name = [None]
    dist.broadcast_object_list(name, src=0)
    torch.cuda.set_device(local_rank)  #> set-device-after-collective
    return DDP(net.cuda())
""",
    "names gathered before the device": """
import socket

def main(net, local_rank):
    dist.init_process_group("nccl")
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    torch.cuda.set_device(local_rank)  #> set-device-after-collective
    return DDP(net.cuda())
""",
    "objects behind the device": """
def main(net, local_rank):
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    dist.broadcast_object_list([None], src=0)
    return DDP(net.cuda())
""",
}
CASES = {**BATCHES, **WEIGHTS, **SPLITS, **EVALUATIONS, **DEVICES}


@pytest.mark.parametrize("name", CASES)
def test_what_a_value_is_made_of(name, judged):
    """The marked lines are found, and no others."""
    found, wanted = judged(HEAD + CASES[name])
    assert found == wanted
