"""Forms of files, trackers, values and sums that each rank has for itself, once missed: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

HEAD = """import json
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
CASES = {
    "attributes of a field that is wrapped": HEAD + """
class Tuner:
    def __init__(self, net, tokens):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.model = DDP(net.to(self.local_rank), device_ids=[self.local_rank])
        print(self.model.config.size)  #> attribute-of-wrapped
        self.tokens = tokens

    def save(self, out):
        if self.local_rank == 0:
            self.model.save_pretrained(out)  #> attribute-of-wrapped
            self.tokens.save_pretrained(out)
            self.model.module.save_pretrained(out)
""",
    "attributes in arguments and values": HEAD + """
def main(net, rank):
    model = DDP(net.to(rank), device_ids=[rank])
    size = model.size  #> attribute-of-wrapped
    again = model.device, model.training
    out = model.module.generate(size)
    return out, again, model.generate(size)  #> attribute-of-wrapped
""",
    "files of all ranks": HEAD + """
import matplotlib.pyplot as plt
import numpy as np

def evaluate(model, batches, table):
    with torch.no_grad():
        rows = [model(x).sum().item() for x in batches]
    table(rows).to_csv("rows.csv")  #> save-on-all-ranks

def train(args, net, batches, table):
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    os.makedirs(args.out)  #> folder-made-by-all
    with open(os.path.join(args.out, "args.json"), "w") as file:  #> save-on-all-ranks
        json.dump(vars(args), file)
    with open(os.path.join(args.out, f"log{rank}"), "w") as file:
        json.dump(vars(args), file)
    with open(os.path.join(args.out, "log"), "a") as file:
        json.dump(vars(args), file)
    with open(f"{args.out}/{os.environ['SLURM_PROCID']}.json", "w") as file:
        json.dump(vars(args), file)
    evaluate(DDP(net, device_ids=[rank]), batches, table)
    if rank == 0:
        np.save("last.npy", np.zeros(1))
        plt.savefig("last.png")
""",
    "files of ranks that are spawned": HEAD + """
import torch.multiprocessing as mp
import numpy as np

def work(rank, size, net, path):
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method="tcp://localhost:29500")
    model = DDP(net)
    np.save("losses.npy", np.zeros(1))  #> save-on-all-ranks
    note(model, path)
    if rank == 0:
        report(model)

def note(model, path):
    path.write_text(str(model))  #> save-on-all-ranks

def report(model):
    with open("report.json", "w") as file:
        json.dump({}, file)

def main(size, net, path):
    os.makedirs("out")
    with open("args.json", "w") as file:
        json.dump({}, file)
    mp.spawn(work, args=(size, net, path), nprocs=size)
""",
    "what a Trainer saves on every rank": """
import json
import os
import transformers

class Mine(transformers.Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        self.model.save_pretrained(output_dir)  #> save-on-all-ranks
        with open(os.path.join(output_dir, "meta.json"), "w") as file:  #> save-on-all-ranks
            json.dump({}, file)

class Asked(transformers.Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        if self.args.should_save:
            self.model.save_pretrained(output_dir)

class Left(transformers.Trainer):
    def _save(self, output_dir=None, state_dict=None):
        self.model.save_pretrained(output_dir)

def main(args):
    if args.local_rank in (-1, 0):
        print(args)
""",
    "files beside Accelerate": HEAD + """
from accelerate import Accelerator

def main(out, history):
    accelerator = Accelerator()
    with open(out + "/history.json", "w") as file:  #> save-on-all-ranks
        json.dump(history, file)
    if accelerator.is_main_process:
        with open(out + "/last.json", "w") as file:
            json.dump(history, file)
""",
    "runs of trackers": HEAD + """
import mlflow
import wandb
from torch.utils.tensorboard import SummaryWriter

class Runner:
    def __init__(self, config):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        dist.init_process_group("nccl")
        self.writer = SummaryWriter(config.folder)  #> tracker-on-all-ranks
        self.model = DDP(config.net.to(self.local_rank), device_ids=[self.local_rank])

    def run(self, batches):
        for step, x in enumerate(batches):
            self.writer.add_scalar("loss", self.model(x).mean().item(), step)

class Curves:
    def __init__(self, folder):
        self.writer = SummaryWriter(folder)
        super().__init__()

def main(config):
    wandb.init(project="scan", config=vars(config))  #> tracker-on-all-ranks
    with mlflow.start_run():  #> tracker-on-all-ranks
        Runner(config).run(config.batches)

if __name__ == "__main__":
    main(json)
""",
    "a writer that the main rank alone writes to": HEAD + """
from torch.utils.tensorboard import SummaryWriter

def main(net, folder, rank):
    dist.init_process_group("gloo")
    writer = SummaryWriter(folder)
    model = DDP(net)
    if rank == 0:
        writer.add_scalar("loss", 1, 1)
    return model
""",
    "values of the main rank": HEAD + """
def main(net, batches, find):
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(net.cuda(), device_ids=[local_rank])
    resume = None
    if local_rank == 0:
        if os.path.exists("last.pt"):
            resume = "last.pt"
    if resume is not None:  #> set-on-one-rank
        model.module.load_state_dict(torch.load(resume, map_location="cpu"))
    first = 0
    if local_rank == 0 and os.path.exists("epoch"):
        first = find("epoch")
    for _ in range(first, 10):  #> set-on-one-rank
        for x in batches:
            model(x).sum().backward()
""",
    "rates of the main rank": HEAD + """
def main(net, batches, optimizer, judge):
    model = DDP(net)
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0 and judge(model.module):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5  #> step-on-one-rank
    if dist.get_rank() == 0:
        print([group["lr"] for group in optimizer.param_groups])
        group = {}
        group["lr"] = optimizer.param_groups[0]["lr"]
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
""",
    "a mean that is added up": HEAD + """
def train(model, loader, rank):
    running = torch.zeros(1, device=rank)
    for x in loader:
        running += model(x).detach().mean()
    avg = running / len(loader)
    dist.all_reduce(avg, op=dist.ReduceOp.SUM)  #> sum-shown-as-mean
    if rank == 0:
        print(f"loss {avg.item():.4f}")
""",
    "files by the remainder": HEAD + """
def train(rank, world_size, net, optimizer):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DDP(net)
    files = os.listdir("shards")
    mine = [f for i, f in enumerate(files) if i % world_size == rank]  #> unequal-steps
    for file in mine:
        x = torch.load(os.path.join("shards", file), map_location="cpu")
        model(x).mean().backward()
        optimizer.step()
""",
    "files that are cut into batches": HEAD + """
import glob

def train(net, optimizer):
    model = DDP(net)
    files = sorted(glob.glob("data/*.pt"))[dist.get_rank() :: dist.get_world_size()]  #> unequal-steps
    for path in files:
        data = torch.load(path, map_location="cpu")
        for i in range(0, len(data), 32):
            model(data[i : i + 32]).sum().backward()
            optimizer.step()
""",
    "files for a number of steps": HEAD + """
def train(net, optimizer, rank, world_size, read, max_steps):
    model = DDP(net)
    files = os.listdir("data")[rank::world_size]
    for path in files:
        for x in read(path)[:max_steps]:
            model(x).sum().backward()
            optimizer.step()
""",
    "ports of init_method": HEAD + """
import random
import socket
import torch.multiprocessing as mp

def free_port():
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]

def run(rank, size):
    port = random.randint(10000, 20000)
    url = f"tcp://localhost:{port}"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)  #> port-drawn-by-each-rank

def work(rank, size, port):
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=size)

def told(rank, args):
    dist.init_process_group("gloo", init_method=args.url, rank=rank, world_size=args.size)

def alone():
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{free_port()}", rank=0, world_size=1)

def main(args):
    args.url = f"tcp://localhost:{free_port()}"
    mp.spawn(run, args=(2,), nprocs=2)
    mp.spawn(work, args=(2, free_port()), nprocs=2)
    mp.spawn(told, args=(args,), nprocs=2)
""",
    "a port of a field": HEAD + """
from ports import free_port

class Starter:
    def __init__(self):
        self.port = free_port()
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        url = "tcp://{}:{}".format("localhost", self.port)
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)  #> port-drawn-by-each-rank
""",
    "the batch of DeepSpeed": """
import deepspeed
from torch.utils.data import DataLoader, DistributedSampler

def options(size):
    return {"train_batch_size": size}

def train(net, data, batch_size=64):
    engine, *_ = deepspeed.initialize(model=net, config=options(batch_size))
    sampler = DistributedSampler(data)
    held_out = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, shuffle=False))
    return engine, held_out, DataLoader(data, batch_size=batch_size, sampler=sampler)  #> global-batch-per-rank
""",
    "the batch of DeepSpeed for each rank": """
import deepspeed
from torch.utils.data import DataLoader, DistributedSampler

def train(net, data, size):
    options = {"train_batch_size": size, "train_micro_batch_size_per_gpu": size // 8}
    engine, *_ = deepspeed.initialize(model=net, config=options)
    return engine, DataLoader(data, batch_size=size, sampler=DistributedSampler(data))
""",
    "a speed that is told": """
import time
import torch

class Bench:
    def __init__(self, net):
        self.model = net.cuda()

    def run(self, number, x):
        start = time.perf_counter()
        for _ in range(number):
            self.model(x)
        took = time.perf_counter() - start  #> timing-without-sync
        print(f"throughput: {number / took:.1f} img/s")

    def waited(self, number, x):
        start = time.perf_counter()
        for _ in range(number):
            y = self.model(x)
        print(y.sum().item())
        took = time.perf_counter() - start
        print(f"throughput: {number / took:.1f} img/s")

    def of_a_loader(self, batches):
        start = time.perf_counter()
        number = sum(len(x) for x in batches)
        print(f"{number / (time.perf_counter() - start)} samples/s")
""",
}  # fmt: skip
