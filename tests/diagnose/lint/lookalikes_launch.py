"""Correct programs that look like the wrong ones, for rules of collectives, launch lines and our own interface."""

LOOK_ALIKES = {
    "RW401": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def prepare(args, path, tensor, group):
    if args.local_rank not in (-1, 0):
        dist.barrier()
    data = open(path).read()
    if args.local_rank == 0:
        dist.barrier()
    if dist.get_rank() == 0:
        dist.broadcast(tensor, src=0)
    else:
        dist.broadcast(tensor, src=0)
    if args.local_rank != -1:
        dist.barrier()
    if dist.get_rank() == 0:
        dist.all_reduce(tensor, group=group)
    return data
""",
    "RW402": """
import torch.distributed as dist

def train(model, loader, logger):
    for x in loader:
        model(x).sum().backward()
        if dist.get_rank() == 0:
            for name in logger:
                if name == "loss":
                    break

def save(model):
    if dist.get_rank() != 0:
        return
    model.save()

def report(table, path):
    dist.barrier()
    if dist.get_rank() == 0:
        if path.exists():
            return None
        path.write_text(table)
    return path
""",
    "RW403": """
import torch.distributed as dist

class Job:
    @property
    def is_main(self):
        return dist.get_rank() == 0

    def save(self):
        if self.is_main and dist.is_initialized():
            print("saved")

def run(is_main):
    if is_main:
        print("on the main rank")
""",
    "RW404": """
import torch.distributed as dist

def total(values):
    handles = []
    for value in values:
        handles.append(dist.all_reduce(value, async_op=True))
    handle = dist.all_reduce(values[0], async_op=True)
    handle.wait()
    print(values[0].item())
""",
    "RW405": """
import torch.distributed as dist

def train(model, loader, epochs):
    for epoch in range(epochs):
        for x in loader:
            model(x).sum().backward()
        dist.barrier()
""",
    "RW406": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, held_out):
    model = DDP(net, broadcast_buffers=False)
    for x in loader:
        model(x).sum().backward()
    print(model(held_out))
    if dist.get_rank() == 0:
        print(net(held_out))
""",
    "RW601": """
import os
import torch
import torch.distributed as dist

os.environ["MASTER_PORT"] = "29500"
os.environ["TIMEOUT_MS"] = "80000"
dist.init_process_group("nccl", init_method="tcp://localhost:65535")
""",
    "RW602": """
import os
import torch
import torch.distributed as dist

os.environ["NCCL_DEBUG_FILE"] = "nccl.%h.%p.log"
os.environ["NCCL_SOCKET_IFNAME"] = "=eth0"
os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
os.environ["NCCL_OF_A_LATER_VERSION"] = "1"
print(os.environ.get("NCCL_TIMEOUT"))
""",
    "RW603": """
import os
import torch
import torch.distributed as dist

print(os.environ.get("NCCL_P2P_DISABLE"))
""",
    "RW604": """
import argparse
import os
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
if args.local_rank == -1:
    args.local_rank = int(os.environ["LOCAL_RANK"])
torch.distributed.init_process_group("nccl")
""",
    "RW605": """
python -m torch.distributed.run --nproc-per-node=8 train.py
# python -m torch.distributed.launch was used before
echo "torch.distributed.launch is old"
""",
    "RW606": """
import os
import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else 0
if "RANK" in os.environ:
    rank = int(os.environ["RANK"])
""",
    "RW607": """
import os
import torch
import torch.distributed as dist

os.environ["MASTER_ADDR"] = os.environ["HEAD"]
""",
    "RW608": """
import os
import torch
import torch.distributed as dist

print(os.environ["CUDA_VISIBLE_DEVICES"])
""",
    "RW609": """
import os
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("nccl")
    try:
        print(dist.get_rank())
    finally:
        dist.destroy_process_group()
""",
    "RW610": """
import os
import torch
import torch.distributed as dist

local = dist.get_rank() % torch.cuda.device_count()
""",
    "RW611": """
import torch
from project import setup

setup()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
""",
    "RW612": """
#!/bin/bash
#SBATCH --ntasks-per-node=4
srun --ntasks-per-node=1 torchrun --nproc-per-node 4 --nnodes 2 --rdzv-endpoint $HEAD:29500 train.py
srun python train.py
""",
    "RW613": """
export PET_MASTER_ADDR=head
torchrun --nnodes 2 --nproc-per-node 8 --node-rank $RANK train.py
torchrun --nnodes 1 --nproc-per-node 8 train.py
""",
    "RW614": """
import os
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
    mp.spawn(work, args=(2,), nprocs=2)
""",
    "RW622": """
import os
import torch.distributed as dist
import torch.multiprocessing as mp
from ports import find_free_port

def work(rank, world_size, port, server):
    os.environ["MASTER_PORT"] = str(port)
    os.environ["SERVER_PORT"] = str(find_free_port())
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)

def main():
    os.environ["MASTER_ADDR"], port = "127.0.0.1", find_free_port()
    os.environ["MASTER_PORT"] = str(find_free_port())
    mp.spawn(work, args=(2, port), nprocs=2)
""",
    "RW615": """
import os
import torch
import torch.distributed as dist

def on_one_machine(local_rank):
    dist.init_process_group("nccl", rank=local_rank, world_size=torch.cuda.device_count())

def in_a_share(local_rank, world_size):
    dist.init_process_group("nccl", rank=local_rank, world_size=world_size)

def by_hand(rank, local_rank):
    rank = int(os.environ["NODE"]) * 8 + local_rank
    dist.init_process_group("nccl", rank=rank)
""",
    "RW701": """
import rankwise
from torch.nn.functional import cross_entropy

def step(model, batch):
    return cross_entropy(model(batch["x"]), batch["label"])

def tokens(model, batch):
    return cross_entropy(model(batch["ids"]).view(-1, 9), batch["next"].view(-1), reduction="none").view(8, -1).mean(1)

def main(model, optimizer):
    return rankwise.Trainer(model, optimizer, step), rankwise.Trainer(model, optimizer, tokens)
""",
    "RW702": """
import rankwise
from rankwise.data.samples import SampleLoader

def look(source, order, net):
    loader = SampleLoader(source, order=order)
    for batches in loader:
        print(batches)
    print(net.state_dict())
""",
    "RW703": """
import rankwise

with rankwise.bind() as world:
    total = world.all_reduce(1)
    if world.is_main:
        print(total, world.rank)
    if world.world_size > 1:
        world.barrier()
""",
    "RW901": """
import torch
net = torch.nn.DataParallel(torch.nn.Linear(1, 1))  # rankwise: ignore[RW210] one process
""",
}
