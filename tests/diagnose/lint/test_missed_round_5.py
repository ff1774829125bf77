"""Mistakes of a fifth round of public files, longer ones, which a rule once missed: each is found, in invented code."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

HEAD = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SPAWNED_BY_VARIABLES = (
    HEAD
    + """
def work(rank, size):
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size)

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""
)
BACKEND_BY_DEFAULT = """
import torch.distributed as dist

def start(rank, size, run, backend="tcp"):
    dist.init_process_group(backend, rank=rank, world_size=size)
    run(rank, size)
"""
ANOTHER_NAME_FOR_THE_RANK = (
    HEAD
    + """
dist.init_process_group("nccl")
rank = dist.get_rank()
device = rank
torch.cuda.set_device(device)
model = DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[device])
"""
)
SPLIT_BY_SCIKIT_LEARN = (
    HEAD
    + """
from sklearn.model_selection import train_test_split

def main(sessions):
    dist.init_process_group("gloo")
    train, held_out = train_test_split(sessions, test_size=0.2)
    return DDP(torch.nn.Linear(1, 1)), train, held_out
"""
)
ENDLESS_LOADER = (
    HEAD
    + """
from tools import inf_iterator

def main(dataset, model, criterion, optimizer):
    dist.init_process_group("gloo")
    model = DDP(model)
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)
    batches = inf_iterator(loader)
    for number in range(10_000):
        x, y = next(batches)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
"""
)
STATE_BY_A_HELPER = (
    HEAD
    + """
def save(state, name):
    torch.save(state, name)

def main(model, path):
    model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    model = DDP(model)
    if dist.get_rank() == 0:
        save({"epoch": 1, "model": model.state_dict()}, path)
"""
)
# the state that the second call saves is another file than the one that is loaded back
STATE_OF_ANOTHER_FILE = (
    HEAD
    + """
def main(rank, net, path):
    dist.init_process_group("gloo")
    model = DDP(net)
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    model.load_state_dict(torch.load(path, map_location="cpu"))
    if rank == 0:
        torch.save(model.state_dict(), "last.pt")
"""
)
SAVED_BY_THE_FIRST_PROCESS = (
    HEAD
    + """
def train(gpu, net, path):
    if gpu == 0:
        torch.save(net.module.state_dict(), path)

def work(gpu, net, size):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=gpu, world_size=size)
    train(gpu, DDP(net.to(gpu), device_ids=[gpu]), "last.pt")

def main(net, size):
    if size > 1:
        mp.spawn(work, args=(net, size), nprocs=size)
    else:
        train(0, net, "last.pt")
"""
)
BY_WAY_OF_THE_FIRST_GPU = (
    HEAD
    + """
def work(rank, net, size, batches):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=size)
    model = DDP(net.to(rank), device_ids=[rank])
    for batch in batches:
        model(batch.cuda().to(rank)).sum().backward()
"""
)
TIMES_OF_PHASES = """
import time

def train(model, loader, optimizer, criterion, log):
    model.cuda()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        start = time.perf_counter()
        loss = criterion(model(x), y)
        forward = time.perf_counter() - start
        loss.backward()
        optimizer.step()
        log(forward, time.perf_counter() - start)
"""
MEETING_NOWHERE = "torchrun --nnodes=2 --nproc-per-node=3 --master_addr=$HEAD --rdzv_backend=c10d train.py\n"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (SPAWNED_BY_VARIABLES, "train.py", [("spawn-without-address", 8)]),
        (BACKEND_BY_DEFAULT, "train.py", [("deprecated-dist-api", 4)]),
        (ANOTHER_NAME_FOR_THE_RANK, "train.py", [("global-rank-as-device", 10), ("global-rank-as-device", 11)]),
        (SPLIT_BY_SCIKIT_LEARN, "train.py", [("unseeded-split", 11)]),
        (SPLIT_BY_SCIKIT_LEARN.replace("0.2)", "0.2, random_state=None)"), "train.py", [("unseeded-split", 11)]),
        (ENDLESS_LOADER, "train.py", [("missing-set-epoch", 12)]),
        (ENDLESS_LOADER.replace("inf_iterator", "cycle"), "train.py", [("missing-set-epoch", 12)]),
        (STATE_BY_A_HELPER, "train.py", [("save-wrapped-state", 14)]),
        (STATE_OF_ANOTHER_FILE, "train.py", [("save-wrapped-state", 15)]),
        (SAVED_BY_THE_FIRST_PROCESS.replace("    if gpu == 0:\n    ", ""), "train.py", [("save-on-all-ranks", 8)]),
        (BY_WAY_OF_THE_FIRST_GPU, "train.py", [("no-set-device", 11)]),
        (TIMES_OF_PHASES, "train.py", [("timing-without-sync", 10), ("timing-without-sync", 13)]),
        (MEETING_NOWHERE, "run.sh", [("no-rendezvous", 1)]),
        ("export MASTER_ADDR=head\ntorchrun --nnodes 2 train.py\n", "run.sh", [("no-rendezvous", 2)]),
    ],
)
def test_a_mistake_that_was_missed_is_found_at_its_line(text: str, name: str, expected: list[tuple[str, int]]) -> None:
    """These findings and no others."""
    findings = check_source(source_from_text(text, name))
    assert sorted((found.rule.slug, found.line) for found in findings) == sorted(expected)


LEFT_ALONE = {
    "an address of its own": SPAWNED_BY_VARIABLES.replace("env://", "tcp://127.0.0.1:29500"),
    "another default": BACKEND_BY_DEFAULT.replace("tcp", "gloo"),
    "the rank on the node": ANOTHER_NAME_FOR_THE_RANK.replace("dist.get_rank()", "dist.get_node_local_rank()"),
    "a split by a seed": SPLIT_BY_SCIKIT_LEARN.replace("0.2)", "0.2, random_state=7)"),
    "a split in order": SPLIT_BY_SCIKIT_LEARN.replace("0.2)", "0.2, shuffle=False)"),
    "a split after a seed": SPLIT_BY_SCIKIT_LEARN.replace("    train", "    torch.manual_seed(7)\n    train"),
    "a split before the ranks": SPLIT_BY_SCIKIT_LEARN.replace(
        """    dist.init_process_group("gloo")
    train""",
        "    train",
    )
    + """
def work(rank, parts):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=2)

def start(sessions):
    mp.spawn(work, args=(main(sessions),), nprocs=2)
""",
    "an endless loader that is told": ENDLESS_LOADER.replace("optimizer.zero_grad()", "sampler.set_epoch(number)"),
    "an endless loader without training": ENDLESS_LOADER.replace(".backward()", ".item()"),
    "endless held-out data": ENDLESS_LOADER.replace("loader", "val_loader"),
    "a wrapped model that loads it": STATE_BY_A_HELPER.replace("    model = DDP(model)\n", "").replace(
        "    model.load", "    model = DDP(model)\n    model.load"
    ),
    "the state behind the wrap": STATE_BY_A_HELPER.replace("model.state_dict", "model.module.state_dict"),
    "a state that is loaded back": STATE_OF_ANOTHER_FILE.replace('"last.pt"', "path"),
    "a state that is loaded from somewhere": STATE_OF_ANOTHER_FILE.replace("torch.load(path,", "torch.load(given(),"),
    "the first process saves": SAVED_BY_THE_FIRST_PROCESS,
    "straight to its own GPU": BY_WAY_OF_THE_FIRST_GPU.replace(".cuda()", ""),
    "by way of a chosen GPU": BY_WAY_OF_THE_FIRST_GPU.replace(
        "    model", "    torch.cuda.set_device(rank)\n    model"
    ),
    "times of whole steps": TIMES_OF_PHASES.replace("        forward = time.perf_counter() - start\n", "").replace(
        "forward, ", ""
    ),
    "times of phases that wait": TIMES_OF_PHASES.replace(
        "        forward =", "        loss.item()\n        forward ="
    ).replace("        log(", "        torch.cuda.synchronize()\n        log("),
    "times of phases on the CPU": TIMES_OF_PHASES.replace(".cuda()", ""),
    "an endpoint in a file": MEETING_NOWHERE.replace("--master_addr=$HEAD", "--rdzv_endpoint=$HEAD:29500"),
    "a static address in a file": MEETING_NOWHERE.replace("c10d", "static"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    """Nothing is found."""
    file = "run.sh" if "file" in name else "train.py"
    assert check_source(source_from_text(LEFT_ALONE[name], file)) == []
