"""Mistakes by how a script starts, leaves, saves and is timed, as round 8 of public files missed them. All invented."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

HEAD = """import os
import sys
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SAVED_BY_THE_MAIN_PROGRAM = (
    HEAD
    + """
if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(1, 1))
    torch.save(model.module.state_dict(), "out.pt")
"""
)
RANK_WITH_A_FALLBACK = (
    HEAD
    + """
def setup(number):
    dist.init_process_group("nccl")
    torch.cuda.set_device(number)

try:
    number = int(os.environ["RANK"])
    setup(number)
except KeyError:
    number = 0
"""
)
OUT_BEFORE_TRAINING = (
    HEAD
    + """
def main(net, folder):
    dist.init_process_group("gloo")
    if dist.get_rank() == 0 and os.path.exists(folder):
        print("there already")
        sys.exit(1)
    return DDP(net)
"""
)
OUT_OF_ACCELERATE = """from accelerate import Accelerator

def fit(net, accelerator):
    net = accelerator.prepare(net)
    return net

accelerator = Accelerator()
if accelerator.is_main_process:
    if known(accelerator):
        exit(0)
fit(build(), accelerator)
"""
STATE_OF_ONE_RANK = """from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin

def main(net, folder):
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin())
    net = accelerator.prepare(net)
    if accelerator.is_main_process:
        accelerator.save_state(folder)
"""
WHOLE_WEIGHTS_ON_ONE_RANK = """import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def leads(rank):
    return rank == 0

def show(model, prompt):
    with FSDP.summon_full_params(model):
        print(model.generate(prompt))

def main(net, rank, prompt):
    model = FSDP(net)
    if rank == 0:
        show(model, prompt)
"""
BY_ANOTHER_NAME_OF_DDP = """import torch
from mmcv.parallel import MMDistributedDataParallel

def train(net, folder):
    model = MMDistributedDataParallel(net.cuda(), device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.load_state_dict(torch.load(folder + "/optimizer.pt"))
    torch.save(optimizer.state_dict(), folder + "/optimizer.pt")
"""
DEVICE_OF_AN_OPTION = (
    HEAD
    + """
def work(rank, args, net, batches):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    model = DDP(net.to(rank))
    for x in batches:
        print(model(x.to(args.device)))

if __name__ == "__main__":
    import argparse

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    mp.spawn(work, args=(parser.parse_args(), torch.nn.Linear(1, 1), []), nprocs=2)
"""
)
READ_BEFORE_IT_WAITS = (
    HEAD
    + """
def train(model, loader, optimizer):
    for x in loader:
        begun = time.time()
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
        took = time.time() - begun
        print(took, loss.item())
"""
)
READ_BEFORE_A_HELPER_WAITS = READ_BEFORE_IT_WAITS.replace("print(took, loss.item())", "report(took, loss)") + (
    """
def report(took, loss):
    print(took, loss.item())
"""
)
STATEFUL_LOADER = (
    HEAD
    + """from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

def main(net, data, optimizer):
    model = DDP(net)
    sampler = DistributedSampler(data)
    loader = StatefulDataLoader(data, batch_size=8, sampler=sampler)
    for _ in range(10):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
"""
)
TRIED_ELSEWHERE = (
    HEAD
    + """
def work(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = DDP(torch.nn.Linear(1, 1).to(rank))
    print(model)

def count(data, net, optimizer):
    net.to("cuda:0")
    loader = torch.utils.data.DataLoader(data, shuffle=True)
    for x in loader:
        net(x).sum().backward()
        optimizer.step()
    torch.save(net.state_dict(), "alone.pt")

def start(job, number):
    mp.spawn(job, args=(number,), nprocs=number)

if __name__ == "__main__":
    start(work, 2)
"""
)
WRAPPED_IN_SOME_RUNS = (
    HEAD
    + """
def main(args, net, path):
    if args.distributed:
        dist.init_process_group("nccl")
        net = DDP(net)
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), path)
"""
)
BESIDE_A_LIBRARY = (
    HEAD
    + """import deepspeed

def main(net, path):
    dist.init_process_group("gloo")
    model = DDP(net)
    model.load_state_dict(torch.load(path, map_location="cpu"))
    torch.save(model.state_dict(), path)
"""
)
FOUND = [
    (WRAPPED_IN_SOME_RUNS, [("save-wrapped-state", 14)]),
    (BESIDE_A_LIBRARY, [("save-on-all-ranks", 14)]),
    (SAVED_BY_THE_MAIN_PROGRAM, [("save-on-all-ranks", 12)]),
    (RANK_WITH_A_FALLBACK, [("global-rank-as-device", 11)]),
    (OUT_BEFORE_TRAINING, [("rank-dependent-exit", 13)]),
    (OUT_OF_ACCELERATE, [("rank-dependent-exit", 10)]),
    (STATE_OF_ONE_RANK, [("collective-in-rank-branch", 8)]),
    (
        STATE_OF_ONE_RANK.replace("DeepSpeed", "FullyShardedDataParallel").replace("deepspeed", "fsdp"),
        [("collective-in-rank-branch", 8)],
    ),
    (WHOLE_WEIGHTS_ON_ONE_RANK, [("collective-in-rank-branch", 14)]),
    (WHOLE_WEIGHTS_ON_ONE_RANK.replace("if rank == 0", "if is_main(rank)"), [("collective-in-rank-branch", 14)]),
    (BY_ANOTHER_NAME_OF_DDP, [("load-without-map-location", 7), ("save-on-all-ranks", 8)]),
    (DEVICE_OF_AN_OPTION, [("hardcoded-device", 14)]),
    (READ_BEFORE_IT_WAITS, [("timing-without-sync", 15)]),
    (READ_BEFORE_A_HELPER_WAITS, [("timing-without-sync", 15)]),
    (STATEFUL_LOADER, [("missing-set-epoch", 13)]),
    (
        TRIED_ELSEWHERE.replace("print(model)", "count([], model, None)"),
        [("hardcoded-device", 17), ("missing-sampler", 18), ("save-on-all-ranks", 22), ("save-wrapped-state", 22)],
    ),
]


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_a_mistake_in_this_form_is_found_at_its_line(text: str, expected: list[tuple[str, int]]) -> None:
    """These findings and no others."""
    findings = check_source(source_from_text(text, "train.py"))
    assert sorted((found.rule.slug, found.line) for found in findings) == sorted(expected)


LEFT_ALONE = {
    "the main rank saves": SAVED_BY_THE_MAIN_PROGRAM.replace(
        "    torch.save", "    if dist.get_rank() == 0:\n        torch.save"
    ),
    "under a test out of sight": SAVED_BY_THE_MAIN_PROGRAM.replace(
        "    torch.save", "    if saves_here:\n        torch.save"
    ),
    "the local rank with a fallback": RANK_WITH_A_FALLBACK.replace('"RANK"', '"LOCAL_RANK"'),
    "nothing but zero": RANK_WITH_A_FALLBACK.replace('int(os.environ["RANK"])', "0"),
    "all ranks leave": OUT_BEFORE_TRAINING.replace("dist.get_rank() == 0 and ", ""),
    "nothing trains behind it": OUT_BEFORE_TRAINING.replace("return DDP(net)", "return net"),
    "it leaves at the end": OUT_OF_ACCELERATE.replace("fit(build(), accelerator)", "")
    .replace("accelerator = Acc", "fit(build(), accelerator := Acc")
    .replace("Accelerator()\nif", "Accelerator())\nif"),
    "of DDP the main rank may save": STATE_OF_ONE_RANK.replace("deepspeed_plugin=DeepSpeedPlugin()", "").replace(
        "from accelerate.utils import DeepSpeedPlugin\n", ""
    ),
    "with DeepSpeed all come": STATE_OF_ONE_RANK.replace(
        "is_main_process:", 'is_main_process or accelerator.distributed_type == "DEEPSPEED":'
    ),
    "all ranks show": WHOLE_WEIGHTS_ON_ONE_RANK.replace("if rank == 0", "if prompt"),
    "an option that is no number": DEVICE_OF_AN_OPTION.replace("cuda:0", "cuda"),
    "an option that is set": DEVICE_OF_AN_OPTION.replace(
        "    model = DDP", '    args.device = f"cuda:{rank}"\n    model = DDP'
    ),
    "it waits first": READ_BEFORE_IT_WAITS.replace("        took", "        torch.cuda.synchronize()\n        took"),
    "the loss is read first": READ_BEFORE_IT_WAITS.replace("        took", "        seen = loss.item()\n        took"),
    "from step to step": READ_BEFORE_IT_WAITS.replace("        begun = time.time()\n", "").replace(
        "        print", "        begun = time.time()\n        print"
    ),
    "the scaler waits": READ_BEFORE_IT_WAITS.replace("optimizer.step()", "scaler.step(optimizer)"),
    "it never waits": READ_BEFORE_IT_WAITS.replace(", loss.item()", ""),
    "no rank comes there": TRIED_ELSEWHERE,
    "nor to what is inside": TRIED_ELSEWHERE.replace(
        "def count(data, net, optimizer):\n", "def outer():\n  def count(data, net, optimizer):\n"
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    """Nothing is found."""
    findings = check_source(source_from_text(LEFT_ALONE[name], "train.py"))
    assert [(found.rule.slug, found.line) for found in findings] == []
