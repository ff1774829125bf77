"""Forms of tests of the rank, loaders, libraries and launch lines that were once missed: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

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
        with accelerator.accumulate(net):
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
    "a conversion inside the wrap": HEAD + """
def main(net, index):
    return DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(net), device_ids=[index])
""",
    "one GPU for each process": HEAD + """
def main(net):
    assert torch.cuda.device_count() == 1
    return DDP(net.to("cuda:0"), device_ids=[0])
""",
}  # fmt: skip


for _file in ("written_apart.py", "written_loops.py", "written_saves.py"):
    CASES |= runpy.run_path(str(Path(__file__).with_name(_file)))["CASES"]


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
    "an address by a variable": "NODES=2\nexport HOST=127.0.0.1  #> loopback-for-nodes\n"
    "torchrun --nnodes $NODES --rdzv-backend c10d --rdzv-endpoint $HOST:29500 train.py\n",
    "nodes that are counted elsewhere": "torchrun --nnodes=$POD_COUNT --rdzv-endpoint=localhost:29400 train.py"
    "  #> loopback-for-nodes\n",
    "nodes with a default of one": "NNODES=${NNODES:-1}\n"
    "torchrun --nnodes=$NNODES --rdzv-endpoint=localhost:29400 train.py\n",
    "a script of the first node": "#!/bin/bash\n#SBATCH -N 2\n# no srun here\n"
    "torchrun --nnodes 2 --rdzv-endpoint $HOST:29500 train.py  #> launcher-on-first-node\n",
    "a script of one node": "#!/bin/bash\n#SBATCH -N 1\ntorchrun --nnodes 1 train.py\n",
    "tasks of a job": "#!/bin/bash\n#SBATCH -N 1\n#SBATCH -n 4\n"
    "srun torchrun --standalone --nproc_per_node=4 train.py  #> launch-twice\n"
    "srun -n1 torchrun --standalone --nproc_per_node=4 train.py\nsrun -n 1 torchrun --nproc_per_node=4 train.py\n",
    "other launchers": "#!/bin/bash\n#SBATCH --ntasks-per-node=4\n"
    "srun python -m torch.distributed.run --nproc_per_node=4 train.py  #> launch-twice\n"
    "srun accelerate launch --num_processes 4 train.py  #> launch-twice\n"
    "srun --ntasks-per-node=1 accelerate launch --num_processes 4 train.py\n",
    "one task on two nodes": "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks=1\n"
    "srun torchrun --nnodes 2 --rdzv-endpoint $HOST:29500 train.py  #> launcher-on-first-node\n"
    "srun -N 2 -n 2 torchrun --nnodes 2 --rdzv-endpoint $HOST:29500 train.py\n",
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
