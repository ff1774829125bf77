"""Forms of numbers, saves and loads in public scripts that were missed or misjudged: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import pytest

HEAD = """import os
import sys
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.metrics import f1_score
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from helpers import Scores, save_state
"""
EVALUATE = (
    HEAD
    + """
def loaders(held_out):
    return DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))

def validate(net, loader):
    net.eval()
    metrics = Scores()
    found = []
    with torch.no_grad():
        for x, y in loader:
            found.append({"loss": metrics.evaluate(net(x), y)})
    BODY

def main(net, held_out):
    val_loader = loaders(held_out)
    result = validate(net, val_loader)
    print(result.get("loss"))
"""
)
CASES = {
    "a mean over a list of dicts, filled in a loop over parts of a batch": EVALUATE.replace(
        "            found.append", "            for part in y:\n                found.append"
    ).replace(
        "BODY",
        'losses = [each["loss"] for each in found]\n'
        '    return {"loss": sum(losses) / len(losses)}  #> evaluation-of-share',
    ),
    "a sum that is divided in place": EVALUATE.replace("found = []", "loss = 0.0")
    .replace('found.append({"loss": metrics.evaluate(net(x), y)})', "loss += net(x).mean().item()")
    .replace("BODY", "loss /= len(loader)  #> evaluation-of-share\n    return {'loss': loss}"),
    "a sum of all ranks that is divided in place": EVALUATE.replace("found = []", "loss = torch.zeros(1)")
    .replace('found.append({"loss": metrics.evaluate(net(x), y)})', "loss += net(x).mean()")
    .replace("BODY", "dist.all_reduce(loss)\n    loss /= len(loader)\n    return {'loss': loss}"),
    "steps in a while, and a loader that a method makes": HEAD
    + """
class Work:
    def __init__(self, net, data, optimizer):
        self.model, self.data, self.optimizer = DDP(net), data, optimizer

    def loader(self, data):
        return DataLoader(data, sampler=DistributedSampler(data))  #> missing-set-epoch

    def step(self, x):
        self.model(x).mean().backward()
        self.optimizer.step()

    def work(self, steps):
        batches, step = self.loader(self.data), 0
        while step < steps:
            for x in batches:
                self.step(x)
                step += 1
""",
    "one pass over a loader": HEAD
    + """
def work(net, data, optimizer):
    model = DDP(net)
    batches = DataLoader(data, sampler=DistributedSampler(data))
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
""",
    "weights that the main rank loads to show them": HEAD
    + """
def work(net, batches, optimizer, path, x):
    model = DDP(net)
    for epoch in range(9):
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
    if dist.get_rank() == 0:
        model.module.load_state_dict(torch.load(path))
        print(model.module(x))
""",
    "another model under the name of the wrapped one": HEAD
    + """
def work(make, path, batches):
    model = DDP(make())
    if dist.get_rank() == 0:
        model = make()
        model.load_state_dict(torch.load(path))
    return model
""",
    "a group of one process": HEAD
    + """
def work(net, path):
    dist.init_process_group("nccl", init_method="tcp://localhost:29500", rank=0, world_size=1)
    model = DDP(net.cuda())
    torch.save(model.module.state_dict(), path)
""",
    "data that ranks fetch which a function starts by another one": HEAD
    + """
from torchvision.datasets import MNIST

def begin(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=2)

def fit_and_test(rank, net, path):
    begin(rank)
    model = DDP(net.to(rank), device_ids=[rank])
    model.load_state_dict(torch.load(path))  #> load-without-map-location
    return model, MNIST("data", download=True)  #> prepared-by-all

if __name__ == "__main__":
    mp.spawn(fit_and_test, args=(None, "state.pt"), nprocs=2)
""",
    "what ranks that are spawned do again as they import the file": HEAD
    + """
import wandb

wandb.init(project="scan")  #> tracker-on-all-ranks

def work(rank, net):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=2)
    return DDP(net)

if __name__ == "__main__":
    mp.spawn(work, args=(None,), nprocs=2)
""",
    "what only the process that spawns them does": HEAD
    + """
import wandb

def work(rank, net):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=2)
    return DDP(net)

if __name__ == "__main__":
    wandb.init(project="scan")
    mp.spawn(work, args=(None,), nprocs=2)
""",
    "a state that only the main rank resumes from, and sounds of all ranks": HEAD
    + """
import soundfile

def resume(model, path):
    if dist.get_rank() == 0:
        model.load_state_dict(torch.load(path))  #> load-on-one-rank
        return 1
    return 0

def main(net, path, batches):
    dist.init_process_group("gloo")
    model = DDP(net)
    resume(model, path)
    for step, x in enumerate(batches):
        soundfile.write(f"step_{step}.wav", model(x), 16000)  #> save-on-all-ranks
""",
    "samples that the main rank draws from the wrapped model": HEAD
    + """
from samplers import *

def main(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        sample_images(model, 8)  #> wrapped-forward-on-one-rank
        sample_images(model.module, 8)
""",
    "numpy's mean of losses": EVALUATE.replace("found", "losses").replace(
        "BODY", 'return {"loss": np.mean(losses)}  #> evaluation-of-share'
    ),
    "a mean of the stacked losses that all ranks have gathered": EVALUATE.replace("found", "losses").replace(
        "BODY", 'mean = torch.stack(losses).mean()\n    dist.all_reduce(mean)\n    return {"loss": mean}'
    ),
    "scikit-learn's score of the answers of one rank": EVALUATE.replace(
        'found.append({"loss": metrics.evaluate(net(x), y)})',
        "found.append(net(x).argmax(1))\n            truth.append(y)",
    )
    .replace("found = []", "found, truth = [], []")
    .replace("BODY", 'return {"loss": f1_score(torch.cat(truth), torch.cat(found))}  #> evaluation-of-share'),
    "a mean of lengths": EVALUATE.replace("BODY", 'return {"loss": max(found)}'),
    "a last save that the rank is not asked for": HEAD
    + """
def main(net, folder, epochs):
    dist.init_process_group("nccl")
    model = DDP(net)
    for epoch in range(epochs):
        if dist.get_rank() == 0:
            save_state(folder, model, epoch)
    save_state(folder, model, "last")  #> save-on-all-ranks
""",
    "a helper that asks for the rank itself": HEAD
    + """
def main(net, folder, epochs):
    dist.init_process_group("nccl")
    model = DDP(net)
    for epoch in range(epochs):
        save_state(folder, model, epoch)
    save_state(folder, model, "last")
""",
    "data by their path": HEAD
    + """
def read(data_path):
    return torch.load(data_path)

def main(net, args):
    dist.init_process_group("nccl")
    texts = read(args.data_path)
    model = DDP(net)
    model.module.load_state_dict(torch.load(args.state_path))  #> load-without-map-location
    return model, texts
""",
    "a number of this rank that ends one loop more than the training": HEAD
    + """
def train(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        losses = model(x)
        losses.sum().backward()
        optimizer.step()
        for loss in losses:
            if not torch.isfinite(loss):
                sys.exit(0)  #> rank-dependent-exit
""",
    "a number of this rank that leaves the loop over parts, and one that fails": HEAD
    + """
def train(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        losses = model(x)
        losses.sum().backward()
        optimizer.step()
        for loss in losses:
            if not torch.isfinite(loss):
                break
        if torch.isnan(losses.sum()):
            sys.exit(1)
""",
    "shares by the number that the group counts by, on one machine": HEAD
    + """
def work(local_rank, world_size, net, files):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("nccl", rank=local_rank, world_size=world_size)
    torch.cuda.set_device(local_rank)
    return DDP(net.cuda(), device_ids=[local_rank]), files[local_rank::world_size]

if __name__ == "__main__":
    for number in range(2):
        mp.Process(target=work, args=(number, 2, net, files)).start()
""",
    "a wrapped model that is frozen to be tested": HEAD
    + """
def work(net, held_out):
    dist.init_process_group("nccl")
    model = DDP(net)
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.eval()
    return [model(x) for x in held_out]
""",
    "a sum beside a metric that adds up its own numbers": EVALUATE.replace("found = []", "loss = 0.0")
    .replace('found.append({"loss": metrics.evaluate(net(x), y)})', "loss += net(x).mean().item()")
    .replace(
        "BODY",
        "mean = loss / len(loader)  #> evaluation-of-share\n    return {'loss': mean, 'f1': net.module.f1.compute()}",
    ),
    "samples and graphs that a dataset loads": HEAD
    + """
class Graphs(torch.utils.data.Dataset):
    def __init__(self, path):
        self.parts, self.slices = torch.load(path)

    def __getitem__(self, i):
        return torch.load(os.path.join(self.parts[i], "x.pt"))

def work(net, path):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(net.cuda())
    model.load_state_dict(torch.load(path))  #> load-without-map-location
    return model, Graphs(path)
""",
    "a sampler by the number that the group counts by, on one machine": HEAD
    + """
def start(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)

def work(rank, world_size, data):
    start(rank, world_size)
    return DistributedSampler(data, num_replicas=world_size, rank=rank)

def main(args, data):
    return work(args.local_rank, torch.cuda.device_count(), data)
""",
    "one process with all GPUs where there are no ranks": HEAD
    + """
def wrap(net, ranks, local_rank):
    if ranks > 1:
        net = DDP(net, device_ids=[local_rank])
    elif torch.cuda.device_count() > 1:
        net = torch.nn.DataParallel(net)
    return net
""",
}


@pytest.mark.parametrize("case", CASES)
def test_a_form_is_judged(judged, case):
    found, marked = judged(CASES[case])
    assert found == marked
