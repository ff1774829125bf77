"""Forms that public scripts of the fourteenth round use, missed or reported wrongly at first: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected. The others look like mistakes.
"""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source, source_from_text

HEAD = """import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
START = """
def start(local_rank):
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
"""
ON_THE_RANK_OF_AN_OPTION = (
    HEAD
    + START
    + """
MAIN = 0

def main(net, batches, held_out, optimizer, options):
    local_rank = int(os.environ["LOCAL_RANK"])
    start(local_rank)
    model = DDP(net.cuda(), device_ids=[local_rank])
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
    if local_rank == options.print_rank:
        print(model(held_out))  #> wrapped-forward-on-one-rank
    if dist.get_rank() == MAIN:
        dist.barrier()  #> collective-in-rank-branch
    if local_rank == options.depth:
        print(model(held_out))
"""
)
BY_A_NAME_FROM_ANOTHER_FILE = (
    HEAD
    + START
    + """
from loops import export_graph, val_epoch

def main(net, batches, held_out, optimizer):
    local_rank = int(os.environ["LOCAL_RANK"])
    start(local_rank)
    model = DDP(net.cuda(), device_ids=[local_rank])
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        val_epoch(model, held_out)  #> wrapped-forward-on-one-rank
        val_epoch(model.module, held_out)
        export_graph(model, held_out)
"""
)
TRAINER = """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

def main(net, rows, options: SFTConfig):
    trainer = SFTTrainer(model=net, args=options, train_dataset=rows)
    trainer.train()
    if options.local_rank in [-1, 0]:
        trainer.evaluate()  #> collective-in-rank-branch
        trainer.save_model("out")
        trainer.log_metrics("test", {})
"""
OF_TWO_WAYS = (
    HEAD
    + """
def main(net, batches, optimizer, options):
    if options.distributed:
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        net = DDP(net.cuda(), device_ids=[local_rank])
    for x in batches:
        net(x).mean().backward()
        optimizer.step()
    if not options.distributed:
        torch.save(net.state_dict(), "one.pt")
    elif dist.get_rank() == 0:
        torch.save(net.state_dict(), "net.pt")  #> save-wrapped-state
"""
)
NUMBERED_BY_AN_OPTION = (
    HEAD
    + """
def main(net, batches, optimizer, config):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = DDP(net.cuda(), device_ids=[local_rank])
    for x in batches:
        model(x).mean().backward()
        optimizer.step()
    with open(f"out/{config['gpu']}.txt", "w") as file:
        file.write("done")
    with open(f"out/{config['num_gpus']}.txt", "w") as file:  #> save-on-all-ranks
        file.write("done")
"""
)
SPAWNED = (
    HEAD
    + """
def set_up():
    dist.init_process_group(backend="gloo")  #> spawn-without-address

def work(rank, size):
    set_up()
    print(dist.get_rank(), size)

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""
)
OF_ANOTHER_FUNCTION = (
    HEAD
    + START
    + """
def train(loader, sampler, model, optimizer):
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for x in loader:
            model(x).mean().backward()
            optimizer.step()

def first(data, model, optimizer):
    sampler = DistributedSampler(data)
    train(DataLoader(data, sampler=sampler), sampler, model, optimizer)

def second(data, net):
    local_rank = int(os.environ["LOCAL_RANK"])
    start(local_rank)
    model = DDP(net.cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, sampler=DistributedSampler(data))  #> missing-set-epoch
    first(data, model, optimizer)
    for epoch in range(9):
        for x in loader:
            model(x).mean().backward()
            optimizer.step()
        print(len(loader))
"""
)
TOLD_THE_NUMBER_OF_EPOCHS = (
    HEAD
    + START
    + """
def main(data, net, config):
    local_rank = int(os.environ["LOCAL_RANK"])
    start(local_rank)
    model = DDP(net.cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    epochs = config["epochs"]
    sampler = DistributedSampler(data)
    sampler.set_epoch(config["epochs"])  #> missing-set-epoch
    for epoch in range(epochs):
        for x in DataLoader(data, sampler=sampler):
            model(x).mean().backward()
            optimizer.step()
"""
)
WITHOUT_A_STEP = (
    HEAD
    + START
    + """
def main(data, net):
    local_rank = int(os.environ["LOCAL_RANK"])
    start(local_rank)
    model = DDP(net.cuda(), device_ids=[local_rank])
    sampler = DistributedSampler(data)  #> missing-set-epoch
    loader = DataLoader(data, sampler=sampler)
    for epoch in range(9):
        model.train()
        for x in loader:
            loss = model(x)
            # and so on
"""
)
IN_A_PROGRAM_OF_LIGHTNING = """
import lightning as L
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST

class Digits(L.LightningDataModule):
    def prepare_data(self):
        MNIST("data", download=True)

    def train_dataloader(self):
        return DataLoader(MNIST("data"))

def make_loader():
    return DataLoader(MNIST("data", download=True))  #> prepared-by-all

if __name__ == "__main__":
    loader = make_loader()
    L.Trainer(devices=2, strategy="ddp").fit(model, loader)
"""
MEETS_AT_A_FREE_PORT = (
    HEAD
    + """
from ports import find_free_port

def set_up(rank, size):
    port = find_free_port()  #> port-per-rank
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=size)

def work(rank, size):
    set_up(rank, size)

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""
)
CASES = {
    "every rank finds a free port": MEETS_AT_A_FREE_PORT,
    "one of them finds it": MEETS_AT_A_FREE_PORT.replace(", args", ", find_free_port(), args").replace(
        "find_free_port()  #> port-per-rank", "os.environ['PORT']"
    ),
    "on the rank of an option": ON_THE_RANK_OF_AN_OPTION,
    "an evaluation by a name from another file": BY_A_NAME_FROM_ANOTHER_FILE,
    "a trainer of trl": TRAINER,
    "a trainer of trl that shards": "import deepspeed\n"
    + TRAINER.replace('"out")', '"out")  #> collective-in-rank-branch'),
    "a trainer of trl on all ranks": TRAINER.replace(
        "    if options.local_rank in [-1, 0]:", "    if options.test:"
    ).replace("  #> collective-in-rank-branch", ""),
    "of two ways the one without ranks": OF_TWO_WAYS,
    "of two ways that ask something else": OF_TWO_WAYS.replace("if not options.distributed", "if options.last").replace(
        '"one.pt")', '"one.pt")  #> save-on-all-ranks save-wrapped-state'
    ),
    "a file that is numbered by an option": NUMBERED_BY_AN_OPTION,
    "spawned without a number": SPAWNED,
    "spawned, and told by the environment": SPAWNED.replace(
        "    set_up()", "    os.environ['RANK'] = str(rank)\n    set_up()"
    ).replace("  #> spawn-without-address", ""),
    "spawned, but not the ranks": SPAWNED.replace(
        "    set_up()\n    print(dist.get_rank(), size)", "    print(size)"
    ).replace("  #> spawn-without-address", ""),
    "a sampler of another function is told": OF_ANOTHER_FUNCTION,
    "a sampler is told by what gets it": OF_ANOTHER_FUNCTION.replace("  #> missing-set-epoch", "").replace(
        "print(len(loader))", "train(loader, loader.sampler, model, optimizer)"
    ),
    "a sampler is told in a loop around": OF_ANOTHER_FUNCTION.replace("  #> missing-set-epoch", "").replace(
        "        print(len(loader))", "        loader.sampler.set_epoch(epoch)"
    ),
    "a sampler is told the number of epochs": TOLD_THE_NUMBER_OF_EPOCHS,
    "a sampler is told where it goes on": TOLD_THE_NUMBER_OF_EPOCHS.replace(
        'set_epoch(config["epochs"])  #> missing-set-epoch', 'set_epoch(config["start"])'
    ),
    "a loop over epochs without a step": WITHOUT_A_STEP,
    "a loop over epochs of another model": WITHOUT_A_STEP.replace("model.train()", "trainer.train()").replace(
        "  #> missing-set-epoch", ""
    ),
    "a program of Lightning's ranks": IN_A_PROGRAM_OF_LIGHTNING,
    "a program of one rank of Lightning": IN_A_PROGRAM_OF_LIGHTNING.replace(
        'devices=2, strategy="ddp"', "devices=1"
    ).replace("  #> prepared-by-all", ""),
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_what_is_marked_is_found_and_nothing_else(text: str) -> None:
    """These findings and no others."""
    marked = [
        (slug, number) for number, line in enumerate(text.split("\n"), 1) for slug in line.partition("#>")[2].split()
    ]
    found = [(each.rule.slug, each.line) for each in check_source(source_from_text(text, "train.py"))]
    assert sorted(found) == sorted(marked)
