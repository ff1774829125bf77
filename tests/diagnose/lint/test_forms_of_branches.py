"""Forms that each pass one branch of the rules: what is found in them, and what is left alone."""

import pytest

from rankwise.diagnose.lint import Settings, check_source, source_from_text

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
CASES = {
    "a collective two functions down": """
def inner(x):
    dist.all_reduce(x)
    return x

def outer(x):
    return inner(x)

def main(x):
    if dist.get_rank() == 0:
        outer(x)  #> collective-in-rank-branch
""",
    "the barrier of Lightning's strategy": """
import lightning

class Model(lightning.LightningModule):
    def on_train_end(self):
        if self.global_rank == 0:
            self.trainer.strategy.barrier()  #> collective-in-rank-branch
""",
    "a test that binds its name": """
def main(x, rank):
    if main := rank == 0:
        dist.all_reduce(x)  #> collective-in-rank-branch
""",
    "a rank as a test": """
def main(x, rank):
    if rank:
        dist.barrier()  #> collective-in-rank-branch
""",
    "a flag that is asked for by its name": """
def main(x, args):
    if getattr(args, "is_main_process", True):
        dist.barrier()  #> collective-in-rank-branch
""",
    "a group of some ranks": """
def main(x, rank, group):
    if rank == 0 and group is not None:
        dist.all_reduce(x)
""",
    "a case of a match": """
def main(x, mode):
    match mode:
        case "sum":
            if dist.get_rank() == 0:
                dist.all_reduce(x)  #> collective-in-rank-branch
""",
    "a port in an address": """
dist.init_process_group("gloo", init_method="tcp://head:80000", rank=0, world_size=2)  #> invalid-port
""",
    "a function that is gone": """
def main(xs):
    dist.all_reduce_multigpu(xs)  #> deprecated-dist-api
""",
    "nodes that meet on loopback": """
def main(node, local_rank, size):
    os.environ["MASTER_ADDR"] = "127.0.0.1"  #> loopback-for-nodes
    dist.init_process_group("nccl", rank=node * 8 + local_rank, world_size=size)
""",
    "weights in half precision behind the wrap": """
def main(net):
    model = DDP(net)
    model.half()  #> move-after-wrap
    return model
""",
    "another layout of memory, and a move at the end": """
def main(net, batches):
    model = DDP(net)
    model.to(memory_format=torch.channels_last)
    for x in batches:
        model(x).sum().backward()
    model.cpu()
""",
    "a sampler that shuffles all but what is held out": """
def main(net, dataset, is_val, optimizer):
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=not is_val)  #> missing-set-epoch
    loader = torch.utils.data.DataLoader(dataset, sampler=sampler)
    model = DDP(net)
    for epoch in range(10):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
""",
    "a loss weight that is computed": """
def main(net, counts):
    net.cuda()
    return torch.nn.CrossEntropyLoss(weight=torch.sqrt(torch.tensor([1.0, 2.0])))  #> loss-weight-device
""",
    "a mean by a number that the loop has counted": """
def evaluate(model, held_out):
    loader = torch.utils.data.DataLoader(held_out, sampler=torch.utils.data.DistributedSampler(held_out, shuffle=False))
    losses, number = [], 0
    with torch.no_grad():
        for x in loader:
            losses.append(model(x).item())
            number += 1
    return sum(losses) / number  #> evaluation-of-share
""",
    "a model of one process, saved whole": """
def main(model, path, x):
    model.to("cuda")
    model(x).sum().backward()
    torch.save(model, path)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_forms(judged, case):
    """What is marked is found, and nothing else."""
    found, marked = judged(HEAD + CASES[case])
    assert found == marked


def test_variables_of_launch_lines():
    """A file of one log for all ranks, and switches that were left in."""
    text = "export NCCL_DEBUG_FILE=/tmp/nccl.%r\nexport NCCL_P2P_DISABLE=1\ntorchrun --nproc-per-node 2 train.py\n"
    found = check_source(source_from_text(text, "run.sh"), Settings(select=("RW602", "RW603")))
    assert [(each.line, each.rule.code) for each in found] == [(1, "RW602"), (2, "RW603")]
