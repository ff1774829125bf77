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
    os.makedirs(args.out)
    with open(os.path.join(args.out, "args.json"), "w") as file:  #> save-on-all-ranks
        json.dump(vars(args), file)
    with open(os.path.join(args.out, f"log{rank}"), "w") as file:
        json.dump(vars(args), file)
    with open(os.path.join(args.out, "log"), "a") as file:  #> save-on-all-ranks
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
}  # fmt: skip
