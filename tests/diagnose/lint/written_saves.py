"""Forms of saves, shards and steps of libraries that were once missed: each in invented code.

A line with a mistake ends in ``#> slug``; these findings, and no others, are expected.
"""

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
    "one GPU for what is loaded": HEAD + """
def main(net, path):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    state = torch.load(path, map_location="cuda:0")  #> load-without-map-location
    other = torch.load(path, map_location=torch.device("cuda:0"))  #> hardcoded-device
    net.load_state_dict(torch.load(path, map_location="cuda"))
    if dist.get_rank() == 0:
        print(torch.load(path, map_location="cuda:0").keys())
    return state, other
main(None, None)
""",
    "the main rank leaves by itself": HEAD + """
import sys

def train(net, batches, optimizer, judge):
    model = DDP(net)
    worse = 0
    for epoch in range(9):
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            worse += judge(model.module)
            if worse > 3:
                sys.exit(0)  #> rank-dependent-exit
    if dist.get_rank() == 0:
        if worse:
            sys.exit(1)
""",
    "a helper that shards": HEAD + """
from torch.distributed.fsdp import fully_shard

def share(net, mesh):
    for part in net.blocks:
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)

def main(net, other, mesh):
    optimizer = torch.optim.AdamW(net.parameters())  #> optimizer-before-shard
    net = share(net, mesh)
    other = share(other, mesh)
    later = torch.optim.SGD(other.parameters())
    return net, optimizer, later
""",
    "a handle that is dropped": HEAD + """
def average(net, size):
    for p in net.parameters():
        p.grad /= size
        dist.all_reduce(p.grad, async_op=True)  #> async-result-unwaited
""",
    "handles that are kept": HEAD + """
def average(net, size):
    handles = []
    for p in net.parameters():
        p.grad /= size
        handles.append(dist.all_reduce(p.grad, async_op=True))
    for handle in handles:
        handle.wait()
""",
    "a Trainer that saves on its own": HEAD + """
from transformers import Trainer

class Mine(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        torch.save(self.model.state_dict(), os.path.join(output_dir, "x.pt"))  #> save-on-all-ranks

class Other(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        if self.args.should_save:
            torch.save(self.model.state_dict(), os.path.join(output_dir, "x.pt"))

local_rank = int(os.environ.get("LOCAL_RANK", 0))
""",
    "a module that is copied to all GPUs and saved": """
import torch

def main(net, path):
    net = torch.nn.DataParallel(net).cuda()  #> dataparallel-module
    torch.save(net, path)  #> save-whole-module
    torch.save(net.module.state_dict(), path)
""",
}  # fmt: skip
