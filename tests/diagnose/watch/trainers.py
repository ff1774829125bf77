"""Four training jobs of 2 ranks under torchrun's launcher, in which rank 1 stops loading: `python trainers.py FOLDER`.

None of them knows rankwise. The libraries are imported once, and torchrun's agents and their ranks are forked.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning import LightningModule, Trainer
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch.strategies import DDPStrategy as TrainerStrategy
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(sys.argv[1])


def load(step, rank):
    """Give a batch; rank 1 has none for step 3."""
    if step == 3 and rank == 1:
        time.sleep(600)
    return torch.ones(2, 4)


def train(model, optimizer, backward, rank):
    for step in range(5):
        optimizer.zero_grad()
        backward(model(load(step, rank)).sum())
        optimizer.step()


def make():
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def plain():
    dist.init_process_group("gloo")
    model, optimizer = make()
    train(DistributedDataParallel(model), optimizer, torch.Tensor.backward, dist.get_rank())


def accelerated():
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*make())
    train(model, optimizer, accelerator.backward, accelerator.process_index)


def fabric():
    strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
    it = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    it.launch()
    model, optimizer = it.setup(*make())
    train(model, optimizer, it.backward, it.global_rank)


class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, step):
        return load(step, dist.get_rank())


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer():
    """Rank 1's data are missing while rank 0 is in the backward pass of its own batch."""
    strategy = TrainerStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    it = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, use_distributed_sampler=False, **quiet)
    it.fit(Module(), torch.utils.data.DataLoader(Dataset(), batch_size=None))


def be_rank(case):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: with the agent
    log = os.open(FOLDER / f"{case}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    globals()[case]()


def launch(case):
    """Do what torchrun does, with an agent of its own."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    where = FOLDER / case
    where.mkdir()
    os.chdir(where)
    os.environ |= {"accelerated": {"RANKWISE_WATCH_DIR": "stalls"}, "fabric": {"RANKWISE_RUN_DIR": "run"}}.get(case, {})
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=case,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        local_addr="localhost",
    )
    elastic_launch(config, be_rank)(case)


if __name__ == "__main__":
    torch.set_num_threads(1)
    agents = []
    for name in ("plain", "accelerated", "fabric", "trainer"):
        agents.append(os.fork())
        if agents[-1] == 0:
            launch(name)
            os._exit(1)
    print("started", flush=True)
    sys.stdin.read()  # until the test ends, however it does
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
