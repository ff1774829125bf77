"""Mistakes as they stand in public scripts, which a rule once missed: each is found, in invented code."""

from __future__ import annotations

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text

RETURN_BEFORE_A_BARRIER = """
import torch.distributed as dist

def main(args, folder):
    dist.init_process_group("nccl", device_id=args.device)
    if dist.get_rank() == 0:
        folder.mkdir()
        if any(folder.iterdir()):
            return 1
    dist.barrier()
"""
RETURN_BEFORE_THE_WRAP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def is_master(args):
    return args.rank == 0

def main(args, folder, net):
    if is_master(args):
        if folder.exists():
            return -1
    if args.distributed:
        net = DistributedDataParallel(net, device_ids=[args.local_rank])
    return 0
"""
DEVICE_AFTER_A_BARRIER = """
import torch
import torch.distributed as dist

def main(args, local_rank):
    dist.init_process_group("nccl")
    dist.barrier()
    if args.device == "cuda":
        torch.cuda.set_device(local_rank)
"""

A_MODULE_ITSELF = """
import torch

class Trainer:
    def __init__(self, net, device_ids):
        self.net = net
        self.model = torch.nn.DataParallel(net, device_ids)  # rankwise: ignore[RW210] one machine

    def save(self, path):
        torch.save(self.net.cpu(), path)
        self.net.to("cuda")
"""

HEAD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
"""
EPOCHS_BY_ANOTHER_NAME = (
    HEAD
    + """
def main(data, net, criterion, optimizer):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for i in range(10):
        for x, y in loader:
            criterion(net(x), y).backward()
            optimizer.step()
"""
)
LOADER_HANDED_OVER = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net):
        self.model = DDP(net)

    def fit(self, loader):
        for x in loader:
            self.model(x).sum().backward()

def main(net, data):
    train_loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    Trainer(net).fit(train_loader)
"""
OLD_OPERATION = (
    HEAD
    + """
def mean(values):
    dist.all_reduce(values, op=dist.reduce_op.SUM)
"""
)
SUBCLASS = """
import torch

class Parallel(torch.nn.DataParallel):
    def __getattr__(self, name):
        return getattr(self.module, name)
"""
OPTIONAL_APEX = """
try:
    from apex import amp
except ImportError:
    amp = None
"""
RANK_OF_A_CONFIGURATION = (
    HEAD
    + """
def main(net, config):
    dist.init_process_group("nccl", device_id=config.device)
    return DDP(net.cuda(), device_ids=[config.rank])
"""
)
MICRO_BATCHES = """
from accelerate import Accelerator

def train(model, loader, optimizer, accum_every):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    for _ in range(accum_every):
        loss = model(next(loader))
        accelerator.backward(loss / accum_every)
    optimizer.step()
"""
MICRO_BATCHES_BY_A_HELPER = (
    HEAD
    + """
def train(net, batches, amp, config):
    model = DDP(net)
    for batch in batches:
        for part in batch:
            with amp.context():
                loss = model(part).sum()
                loss = loss / config.accumsteps
            amp.backward(loss)
        amp.step(model)
"""
)
STOP_BY_THE_OWN_LOSS = (
    HEAD
    + """
def train(net, batches, optimizer):
    model = DDP(net)
    for x in batches:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
"""
)
MODEL_THAT_TRAIN_RETURNS = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net):
        self.model = DDP(net)

    def train(self):
        return self.model

def main(rank, net):
    model = Trainer(net).train()
    if rank == 0:
        torch.save(model, "model.pt")
"""
SHARDED_STATE_ON_ONE_RANK = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, rank, kind, policy):
    if rank != 0:
        return None
    with FSDP.state_dict_type(model, kind, policy):
        return model.state_dict()
"""
STEP_THROUGH_METHODS = (
    HEAD
    + """
def train(net, batches, criterion, optimizer):
    net = DDP(net)
    for x, y in batches:
        code = net.module.encode(x)
        output = net.module.project(code)
        loss = criterion(output, y)
        loss.backward()
        optimizer.step()
"""
)
STEP_THROUGH_ANOTHER_NAME = (
    HEAD
    + """
def train(net, batches, criterion, optimizer):
    model = DDP(net)
    inner = model.module if hasattr(model, "module") else model
    for x, y in batches:
        criterion(inner(x), y).backward()
        optimizer.step()
"""
)
STEP_THROUGH_UNWRAP_MODEL = """
from accelerate import Accelerator

def train(net, loader, optimizer):
    accelerator = Accelerator()
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    bare = accelerator.unwrap_model(net)
    for x in loader:
        loss = bare.loss_of(x)
        accelerator.backward(loss)
        optimizer.step()
"""
STATE_OF_AN_ACCELERATED_TRAINER = """
import torch
from accelerate import Accelerator

class Trainer:
    def __init__(self, net):
        self.accelerator = Accelerator()
        self.net = self.accelerator.prepare(net)

    def load(self, path):
        state = torch.load(path)
        self.accelerator.unwrap_model(self.net).load_state_dict(state["net"])
"""
LOADER_BESIDE_AN_ENGINE = """
import deepspeed
from torch.utils.data import DataLoader

def main(args, net, data):
    loader = DataLoader(data, batch_size=8, shuffle=True)
    engine, _, _, _ = deepspeed.initialize(args=args, model=net)
    for x in loader:
        loss = engine(x)
        engine.backward(loss)
        engine.step()
"""
LOADER_BESIDE_PREPARE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

def main(net, data, optimizer):
    accelerator = Accelerator()
    net, optimizer = accelerator.prepare(net, optimizer)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for x in loader:
        accelerator.backward(net(x))
        optimizer.step()
"""
LOADER_BESIDE_HOROVOD = """
import horovod.torch as hvd
from torch.utils.data import DataLoader

def main(net, data, optimizer):
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for x in loader:
        net(x).backward()
        optimizer.step()
"""
BACKEND_THAT_IS_GONE = HEAD + "\ndist.init_process_group(backend='tcp', init_method='tcp://10.0.0.1:20000')\n"
BACKEND_MISSPELT = HEAD + '\nbackend = "ncll"\ndist.init_process_group(backend)\n'
STOP_BY_A_SHARED_LOSS = STOP_BY_THE_OWN_LOSS.replace(
    "        if loss", "        dist.all_reduce(loss)\n        if loss"
)
TEACHER_THROUGH_METHODS = STEP_THROUGH_METHODS.replace("    for x", "    net.eval()\n    for x")
BESIDE_A_FORWARD_PASS = STEP_THROUGH_METHODS.replace("(code)", "(net(x))")
LOADER_OF_THE_ENGINE = LOADER_BESIDE_AN_ENGINE.replace("engine, _, _, _", "engine, _, loader, _").replace(
    "model=net", "model=net, training_data=data"
)
LOADER_PREPARED = LOADER_BESIDE_PREPARE.replace("    for x", "    loader = accelerator.prepare(loader)\n    for x")
NO_STATE = STATE_OF_AN_ACCELERATED_TRAINER.replace(
    "        self.accelerator.unwrap_model(self.net).load_state_dict", "        print"
)
BACKEND_OF_A_PLUGIN = BACKEND_MISSPELT.replace("ncll", "cncl")
RANK_WITH_A_LOCAL_ONE = RANK_OF_A_CONFIGURATION.replace("config.device)", "config.local_device)")


@pytest.mark.parametrize(
    ("text", "slug", "line"),
    [
        (RETURN_BEFORE_A_BARRIER, "rank-dependent-exit", 9),
        (RETURN_BEFORE_THE_WRAP, "rank-dependent-exit", 11),
        (DEVICE_AFTER_A_BARRIER, "set-device-after-collective", 9),
        (A_MODULE_ITSELF, "save-whole-module", 10),
        (EPOCHS_BY_ANOTHER_NAME, "missing-set-epoch", 9),
        (LOADER_HANDED_OVER, "missing-sampler", 14),
        (OLD_OPERATION, "deprecated-dist-api", 9),
        (SUBCLASS, "dataparallel-module", 4),
        (OPTIONAL_APEX, "deprecated-library", 3),
        (RANK_OF_A_CONFIGURATION, "global-rank-as-device", 10),
        (MICRO_BATCHES, "accumulation-without-no-sync", 9),
        (MICRO_BATCHES_BY_A_HELPER, "accumulation-without-no-sync", 15),
        (STOP_BY_THE_OWN_LOSS, "rank-dependent-exit", 15),
        (MODEL_THAT_TRAIN_RETURNS, "save-whole-module", 15),
        (SHARDED_STATE_ON_ONE_RANK, "collective-in-rank-branch", 7),
        (STEP_THROUGH_METHODS, "module-forward", 11),
        (STEP_THROUGH_ANOTHER_NAME, "module-forward", 12),
        (STEP_THROUGH_UNWRAP_MODEL, "module-forward", 9),
        (STATE_OF_AN_ACCELERATED_TRAINER, "load-without-map-location", 11),
        (LOADER_BESIDE_AN_ENGINE, "missing-sampler", 6),
        (LOADER_BESIDE_PREPARE, "missing-sampler", 8),
        (LOADER_BESIDE_HOROVOD, "missing-sampler", 8),
        (BACKEND_THAT_IS_GONE, "deprecated-dist-api", 8),
        (BACKEND_MISSPELT, "deprecated-dist-api", 8),
    ],
)
def test_a_mistake_that_was_missed_is_found_at_its_line(text: str, slug: str, line: int) -> None:
    """One finding, of that rule, at that line."""
    findings = check_source(source_from_text(text, "script.py"))
    assert [(found.rule.slug, found.line) for found in findings] == [(slug, line)]


LEFT_ALONE = {
    "shared loss": STOP_BY_A_SHARED_LOSS,
    "a local rank": RANK_WITH_A_LOCAL_ONE,
    "a teacher": TEACHER_THROUGH_METHODS,
    "beside a forward pass": BESIDE_A_FORWARD_PASS,
    "the engine's loader": LOADER_OF_THE_ENGINE,
    "a prepared loader": LOADER_PREPARED,
    "no state": NO_STATE,
    "a plugin's backend": BACKEND_OF_A_PLUGIN,
}


@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    """A loss that was added up stops all ranks; where a local rank is known, `rank` may mean it; and so on."""
    assert check_source(source_from_text(text, "script.py")) == []
