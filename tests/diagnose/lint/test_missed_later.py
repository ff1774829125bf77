"""Mistakes of a third round of public files, which a rule once missed: each is found, in invented code."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
RANK_BY_A_PARAMETER = (
    HEAD
    + """
def train(rank, world_size, net):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    device = torch.device(f"cuda:{rank}" if torch.cuda.is_available() else "cpu")
    return net.to(device)

if __name__ == "__main__":
    number = int(os.environ["RANK"])
    train(number, int(os.environ["WORLD_SIZE"]), torch.nn.Linear(1, 1))
"""
)
RANK_COUNTED_BY_HAND = (
    HEAD
    + """
def train(rank, net):
    dist.init_process_group("nccl", rank=rank, world_size=8)
    torch.cuda.set_device(rank)
    return DDP(net.cuda())

train(int(os.environ["NODE_RANK"]) * 4 + int(os.environ["LOCAL_RANK"]), torch.nn.Linear(1, 1))
"""
)
OPTION_BESIDE_A_STAR_IMPORT = """
import argparse
import torch
from utils import *

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group(backend="nccl")
"""
OBJECTS_ON_NO_DEVICE = (
    HEAD
    + """
def main(rank, losses):
    dist.init_process_group(backend="nccl", rank=rank, world_size=3)
    gathered = [None] * 3
    dist.all_gather_object(gathered, losses)

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2"
    torch.multiprocessing.spawn(main, args=([1.0],), nprocs=3)
"""
)
WAITING_ON_ONE_RANK = """
from accelerate import Accelerator

def save(net, path):
    accelerator = Accelerator()
    if accelerator.is_local_main_process:
        accelerator.wait_for_everyone()
        accelerator.save(net.state_dict(), path)
"""
CHECKPOINT_OF_AN_ENGINE_ON_ONE_RANK = """
import deepspeed
import torch.distributed as dist

def main(args, net, data, path):
    engine, _, loader, _ = deepspeed.initialize(args=args, model=net, training_data=data)
    for x in loader:
        engine.backward(engine(x))
        engine.step()
    if dist.get_rank() == 0:
        engine.save_checkpoint(path)
"""
HOROVOD_ON_ONE_RANK = """
import horovod.torch as hvd

def report(loss):
    hvd.init()
    if hvd.rank() == 0:
        print(hvd.allreduce(loss))
"""
EVALUATION_ON_ONE_RANK = (
    HEAD
    + """
def evaluate(model, loader):
    return sum(model(x).sum() for x in loader)

def main(net, loader):
    dist.init_process_group("gloo")
    model = DDP(net)
    if dist.get_rank() == 0:
        print(evaluate(model, loader))
"""
)
COPIED_HELPER = (
    HEAD
    + """
from utils import is_main_process

def load(net, path):
    dist.init_process_group("nccl", device_id=net.device)
    if is_main_process:
        net.load_state_dict(torch.load(path))
"""
)
EVALUATION_OF_ANOTHER_FILE_ON_ONE_RANK = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from utils import validate

def main(args, net, loader):
    net = DDP(net)
    for epoch in range(args.epochs):
        if args.local_rank == 0:
            validate(loader, net)
"""
SPAWNED_WITHOUT_ADDRESS = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def setup(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)

def work(rank, world_size):
    setup(rank, world_size)

mp.spawn(work, args=(2,), nprocs=2)
"""
LOCAL_RANK_BY_A_PARAMETER = (
    HEAD
    + """
def train(rank, world_size, data):
    dist.init_process_group("gloo")
    return torch.utils.data.DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)

if __name__ == "__main__":
    train(rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]), data=range(9))
"""
)
TWO_WAYS_TO_ACCUMULATE = (
    HEAD
    + """
def train(net, loader, optimizer, scaler, half, accum_steps):
    dist.init_process_group("gloo")
    model, number = DDP(net), 0
    for x in loader:
        if half:
            scaler.scale(model(x).sum()).backward()
            number += 1
            if number % accum_steps == 0:
                scaler.step(optimizer)
                scaler.update()
        else:
            model(x).sum().backward()
            number += 1
            if number % accum_steps == 0:
                optimizer.step()
"""
)
THE_SAME_EPOCH_EACH_TIME = (
    HEAD
    + """
def main(net, data, optimizer):
    dist.init_process_group("gloo")
    model, start = DDP(net), 0
    number = 0
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, sampler=sampler)
    for epoch in range(9):
        sampler.set_epoch(number)
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
"""
)
SAMPLER_BY_A_STAR = """
from utils import *

def main(net, data, optimizer):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
    model = DistributedDataParallel(net)
    for epoch in range(9):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
"""
STATE_BY_A_VARIABLE = (
    HEAD
    + """
def save(path, net, optimizer):
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path)

def main(net, optimizer, path):
    dist.init_process_group("gloo")
    model = DDP(net)
    if dist.get_rank() == 0:
        save(path, model, optimizer)
"""
)
LOADER_IN_ORDER = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

def train(net, optimizer, data):
    accelerator = Accelerator()
    loader = DataLoader(data, batch_size=8, shuffle=False)
    net, optimizer = accelerator.prepare(net, optimizer)
    for x in loader:
        accelerator.backward(net(x).sum())
        optimizer.step()
"""
MODULE_BEHIND_A_WRAP_OF_ANOTHER_NAME = (
    HEAD
    + """
class Trainer:
    def __init__(self, model):
        self.model = model

    def save(self, path):
        if dist.get_rank() == 0:
            torch.save(self.model.module, path)

def main(net, path):
    dist.init_process_group("gloo")
    Trainer(DDP(net)).save(path)
"""
)
BEFORE_THE_SPAWN = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, labels):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.cuda.set_device(rank)

def label(path):
    labels = torch.load(path)
    torch.save(labels, path)
    return labels

def main():
    os.environ["MASTER_ADDR"] = "localhost"
    mp.spawn(work, args=(label("labels.pt"),), nprocs=2)

if __name__ == "__main__":
    main()
"""
LAUNCHER_BY_ITS_FILE = "python /opt/env/site-packages/torch/distributed/launch.py --nproc_per_node=8 train.py\n"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (RANK_BY_A_PARAMETER, "train.py", [("global-rank-as-device", 9)]),
        (RANK_COUNTED_BY_HAND, "train.py", [("global-rank-as-device", 9)]),
        (OPTION_BESIDE_A_STAR_IMPORT, "train.py", [("local-rank-argparse", 7)]),
        (OPTION_BESIDE_A_STAR_IMPORT.replace("*", "dist"), "train.py", [("local-rank-argparse", 7)]),
        (WAITING_ON_ONE_RANK, "train.py", [("collective-in-rank-branch", 7)]),
        (CHECKPOINT_OF_AN_ENGINE_ON_ONE_RANK, "train.py", [("collective-in-rank-branch", 11)]),
        (HOROVOD_ON_ONE_RANK, "train.py", [("collective-in-rank-branch", 7)]),
        (EVALUATION_ON_ONE_RANK, "train.py", [("wrapped-forward-on-one-rank", 14)]),
        (COPIED_HELPER, "train.py", [("uncalled-rank-guard", 11), ("load-without-map-location", 12)]),
        (EVALUATION_OF_ANOTHER_FILE_ON_ONE_RANK, "train.py", [("wrapped-forward-on-one-rank", 10)]),
        (SPAWNED_WITHOUT_ADDRESS, "train.py", [("spawn-without-address", 7)]),
        (LOCAL_RANK_BY_A_PARAMETER, "train.py", [("sampler-rank", 9)]),
        (SAMPLER_BY_A_STAR, "train.py", [("missing-set-epoch", 5)]),
        (THE_SAME_EPOCH_EACH_TIME, "train.py", [("missing-set-epoch", 14)]),
        (STATE_BY_A_VARIABLE, "train.py", [("save-wrapped-state", 8)]),
        (LOADER_IN_ORDER, "train.py", [("missing-sampler", 7)]),
        (MODULE_BEHIND_A_WRAP_OF_ANOTHER_NAME, "train.py", [("save-whole-module", 13)]),
        (
            BEFORE_THE_SPAWN.replace("spawn(work", "spawn(label").replace('label("labels.pt")', '"labels.pt"'),
            "train.py",
            [("load-without-map-location", 12), ("save-on-all-ranks", 13)],
        ),
        (
            TWO_WAYS_TO_ACCUMULATE,
            "train.py",
            [("accumulation-without-no-sync", 12), ("accumulation-without-no-sync", 18)],
        ),
        (LAUNCHER_BY_ITS_FILE, "run.sh", [("deprecated-dist-api", 1)]),
        (OBJECTS_ON_NO_DEVICE, "train.py", [("no-set-device", 10)]),
        (
            OBJECTS_ON_NO_DEVICE.replace("all_gather_object(gathered, ", "gather_object("),
            "train.py",
            [("no-set-device", 10)],
        ),
        (OBJECTS_ON_NO_DEVICE.replace("import os", "import os, deepspeed"), "train.py", [("no-set-device", 10)]),
        (OBJECTS_ON_NO_DEVICE.replace('"0,1,2"', '"0, 1, 2"'), "train.py", [("no-set-device", 10)]),
    ],
)
def test_a_mistake_that_was_missed_is_found_at_its_line(text: str, name: str, expected: list[tuple[str, int]]) -> None:
    """These findings and no others."""
    findings = check_source(source_from_text(text, name))
    assert sorted((found.rule.slug, found.line) for found in findings) == sorted(expected)


LEFT_ALONE = {
    "a rank of one node": RANK_BY_A_PARAMETER.replace('"RANK"', '"LOCAL_RANK"').replace(
        '"WORLD_SIZE"', '"LOCAL_WORLD_SIZE"'
    ),
    "another caller": RANK_BY_A_PARAMETER + "    train(0, 1, torch.nn.Linear(1, 1))\n",
    "no group": OPTION_BESIDE_A_STAR_IMPORT.replace("import *", "import *\nimport paddle.distributed as dist"),
    "waiting before": WAITING_ON_ONE_RANK.replace(
        "    if acc", "    accelerator.wait_for_everyone()\n    if acc"
    ).replace("        accelerator.wait_for_everyone()\n        acc", "        acc"),
    "the checkpoint on all ranks": CHECKPOINT_OF_AN_ENGINE_ON_ONE_RANK.replace("if dist.get_rank() == 0", "if path"),
    "the model behind the wrap": EVALUATION_ON_ONE_RANK.replace("evaluate(model, loader))", "evaluate(net, loader))"),
    "the model behind the wrap elsewhere": EVALUATION_OF_ANOTHER_FILE_ON_ONE_RANK.replace(", net)", ", net.module)"),
    "another function elsewhere": EVALUATION_OF_ANOTHER_FILE_ON_ONE_RANK.replace("validate", "save_checkpoint"),
    "an address in a variable": SPAWNED_WITHOUT_ADDRESS.replace(
        "mp.spawn", "mp.os.environ['MASTER_ADDR'] = 'a'\nmp.spawn"
    ),
    "an address in the call": SPAWNED_WITHOUT_ADDRESS.replace('"nccl", ', '"nccl", init_method=URL, '),
    "a local rank from one of two callers": LOCAL_RANK_BY_A_PARAMETER + "    train(0, 1, range(9))\n",
    "a star import beside it": SAMPLER_BY_A_STAR.replace("range(9):", "range(9):\n        sampler.set_epoch(epoch)"),
    "a number that moves": THE_SAME_EPOCH_EACH_TIME.replace("        for x", "        number += 1\n        for x"),
    "the state of the model behind the wrap": STATE_BY_A_VARIABLE.replace(
        "save(path, model,", "save(path, model.module,"
    ),
    "the same epoch in a loop over loaders": THE_SAME_EPOCH_EACH_TIME.replace("range(9)", "net.parts"),
    "a state behind a test of the wrap": STATE_BY_A_VARIABLE.replace(
        "    state =", "    if isinstance(net, DDP):\n        net = net.module\n    state ="
    ),
    "the process that spawns": BEFORE_THE_SPAWN,
    "a loader of Opacus": LOADER_IN_ORDER.replace(
        "    for", "    loader = engine.make_private(data_loader=loader)\n    for"
    ),
    "a prepared loader in order": LOADER_IN_ORDER.replace("prepare(net, optimizer)", "prepare(net, optimizer, loader)"),
    "a called helper": COPIED_HELPER.replace("is_main_process:", "is_main_process():"),
    "objects over gloo": OBJECTS_ON_NO_DEVICE.replace("nccl", "gloo"),
    "objects in a group of their own": OBJECTS_ON_NO_DEVICE.replace("losses)\n\n", "losses, group=small)\n\n"),
    "objects on the GPU of the rank": OBJECTS_ON_NO_DEVICE.replace(
        "    gath", "    torch.cuda.set_device(rank)\n    gath"
    ),
    "a framework at work": OBJECTS_ON_NO_DEVICE.replace("import os", "import os, deepspeed").replace(
        "    gath", "    deepspeed.init_distributed()\n    gath"
    ),
    "one visible GPU": OBJECTS_ON_NO_DEVICE.replace('"0,1,2"', "str(rank)"),
    "another file of that name": LAUNCHER_BY_ITS_FILE.replace("torch/distributed/", "tools/"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    """Nothing is found."""
    file = "run.sh" if "file" in name else "train.py"
    assert check_source(source_from_text(LEFT_ALONE[name], file)) == []
