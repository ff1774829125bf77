"""Forms that public scripts of the twelfth round use, missed at first: each in invented code, with what looks like it.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source, source_from_text

HEAD = """import argparse
import json
import os
import torch
import torch.distributed as dist
import wandb
from torch.multiprocessing import Process
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
CASES = {
    "what DeepSpeed's ranks write, and a flag that is true on all of them": HEAD
    + """
import deepspeed
from omegaconf import OmegaConf

deepspeed.init_distributed()
cfg = OmegaConf.load("run.yaml")
main_process = True
with open("run.json", "w") as file:  #> save-on-all-ranks
    json.dump(dict(cfg), file)
if cfg.use_wandb and main_process:
    wandb.init(project="scan")  #> tracker-on-all-ranks
""",
    "the flag is a test of the rank where there are ranks": HEAD
    + """
import deepspeed

deepspeed.init_distributed()
if dist.is_initialized():
    main_process = dist.get_rank() == 0
else:
    main_process = True
if main_process:
    wandb.init(project="scan")
    with open("run.json", "w") as file:
        json.dump({}, file)
""",
    "options that hold the rank, too, and a figure": HEAD
    + """
import deepspeed
import matplotlib.pyplot as plt

def main(net, batches, sampler):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    options = {"out": "runs", "local_rank": -1}
    args = argparse.Namespace(**options)
    with open(os.path.join(args.out, "args.json"), "w") as file:  #> save-on-all-ranks
        json.dump(vars(args), file)
    engine, *_ = deepspeed.initialize(model=net)
    for x in DataLoader(batches, sampler=sampler):
        engine.backward(engine(x).mean())
        engine.step()
    engine.save_pretrained(args.out)  #> save-on-all-ranks
    plt.savefig(f"{args.out}/multi_gpu.png")  #> save-on-all-ranks
    plt.savefig(f"{args.out}/{args.local_rank}.png")
    with open(f"{args.out}/log.txt", "a") as file:  #> save-on-all-ranks
        file.write("done")
main(None, None, None)
""",
    "ranks that are processes of this one": HEAD
    + """
import matplotlib.pyplot as plt

def work(rank, size, losses):
    plt.plot(losses)
    plt.savefig("losses.png")  #> save-on-all-ranks

def start(rank, size, task):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=size)
    task(rank, size, [])

if __name__ == "__main__":
    for rank in range(4):
        Process(target=start, args=(rank, 4, work)).start()
    plt.savefig("none.png")
""",
    "a test that is given the rank, and turns": HEAD
    + """
def main(args, rank, writes_here):
    dist.init_process_group("nccl")
    if writes_here(args, rank):
        with open("a.json", "w") as file:
            json.dump({}, file)
    if rank != 0:
        dist.barrier()
    with open("b.json", "w") as file:
        json.dump({}, file)
    if rank == 0:
        dist.barrier()
""",
    "an exit by the share of a class": HEAD
    + """
class Runner:
    def __init__(self, net, data, held_out, rank):
        self.net = DDP(net, device_ids=[rank])
        self.batches = DataLoader(data, sampler=(s := DistributedSampler(data)))
        self.sampler = s
        self.held_out = DataLoader(held_out, sampler=DistributedSampler(held_out))

    def run(self, optimizer, patience):
        best, idle = 1e9, 0
        for epoch in range(9):
            self.sampler.set_epoch(epoch)
            self.learn(optimizer)
            found = self.judge()
            if found < best:
                best, idle = found, 0
            else:
                idle += 1
                if idle > patience:
                    break  #> rank-dependent-exit

    def learn(self, optimizer):
        for x in self.batches:
            optimizer.zero_grad()
            self.net(x).mean().backward()
            optimizer.step()

    @torch.no_grad()
    def judge(self):
        losses = []
        for x in self.held_out:
            losses.append(self.net(x).mean().item())
        return sum(losses) / len(losses)  #> evaluation-of-share
""",
    "exits by the loss of this rank, by what all have, and by what all evaluate whole": HEAD
    + """
def main(net, data, held_out, optimizer, rank, patience, stop_early):
    model = DDP(net, device_ids=[rank])
    sampler = DistributedSampler(data)
    batches = DataLoader(data, sampler=sampler)
    whole = DataLoader(held_out)
    best, joint, least, idle, left = 1e9, 1e9, 1e9, 0, patience
    for epoch in range(9):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for step, x in enumerate(batches):
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            seen = [0.0]
            for x in whole:
                seen.append(model(x).mean().item())
        if sum(seen) < least:
            least = sum(seen)
            left = patience
        else:
            left -= 1
            if left < 0:
                break
        if total / len(batches) > best:
            idle += 1
            if idle > patience:
                break  #> rank-dependent-exit
        mean = total.clone()
        dist.all_reduce(mean)
        joint = mean / len(batches)
        if joint > 100.0:
            break
""",
    "torch.gather joins nothing": HEAD
    + """
def judge(model, held_out):
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(held_out, sampler=DistributedSampler(held_out)):
            right += torch.gather(model(x), 1, y).sum().item()
    return right / len(held_out)  #> evaluation-of-share
""",
    "a move above what chooses the GPU": HEAD
    + """
from accelerate import Accelerator

def early(model, optimizer):
    model.to("cuda")  #> no-set-device
    accelerator = Accelerator()
    return accelerator.prepare(model, optimizer)

def late(model, optimizer):
    accelerator = Accelerator()
    model = model.cuda()
    return accelerator.prepare(model, optimizer)
""",
    "a loader that a function of another file trains on": HEAD
    + """
from training import train, look

def main(net, data, shown, rank, optimizer):
    dist.init_process_group("nccl")
    model = DDP(net, device_ids=[rank])
    batches = DataLoader(data, batch_size=8, shuffle=True)  #> missing-sampler
    pictures = DataLoader(shown, batch_size=8, shuffle=True)
    train(model, batches, optimizer)
    look(model, pictures)
""",
    "a data set that says which part of the data it is, and one that skips by the rank on the node": HEAD
    + """
from shown import Shown

def main(net, local_rank, world_size, optimizer, number):
    model = DDP(net, device_ids=[local_rank])
    held_out = Shown(split="val", skip=local_rank * (number // world_size))  #> local-rank-shard
    batches = DataLoader(Shown(split="train"))  #> missing-sampler
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
    return held_out
""",
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_what_is_marked_is_found_and_nothing_else(text: str) -> None:
    """These findings and no others."""
    marked = [
        (slug, number) for number, line in enumerate(text.split("\n"), 1) for slug in line.partition("#>")[2].split()
    ]
    found = [(each.rule.slug, each.line) for each in check_source(source_from_text(text, "train.py"))]
    assert sorted(found) == sorted(marked)
