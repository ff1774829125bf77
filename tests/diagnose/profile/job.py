"""A training whose ranks lose time where the arguments say: plain DDP on gloo, no word of rankwise.

``slow_data``, ``slow_forward`` and ``slow_everywhere`` may be given, each step as many milliseconds; ``heavy``, with
``hook=sync`` by one that waits; ``find_unused`` and ``static_graph`` of DDP; ``accumulate``, micro-batches of a step;
``idle``, a part without use.
"""

import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

wanted = dict(word.split("=") for word in sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, num_micro = dist.get_rank(), int(wanted.get("accumulate", 1))


def late(name, on):
    """Seconds that a rank loses there."""
    return int(wanted.get(name, 0)) / 1000 * (on is None or rank == on)


class Samples(Dataset):
    """Random rows; the last row of a batch comes late."""

    def __len__(self):
        return 8 * int(wanted.get("steps", 60)) * num_micro

    def __getitem__(self, index):
        if index % 8 == 7:
            time.sleep(late("slow_data", 1) + late("slow_everywhere", None))
        return torch.full((64,), float(index % 5))


class Net(nn.Module):
    """A small net, or one whose gradient is large for its work."""

    def __init__(self):
        super().__init__()
        width = 2_000_000 if "heavy" in wanted else 16
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.table = nn.Parameter(torch.zeros(width))
        if "idle" in wanted:
            self.idle = nn.Parameter(torch.zeros(2**18))

    def forward(self, rows):
        """One number for each row."""
        time.sleep(late("slow_forward", 1))
        return self.body(rows) + self.table[:8].sum()


model = DistributedDataParallel(
    Net(), find_unused_parameters="find_unused" in wanted, static_graph="static_graph" in wanted
)
if "heavy" in wanted:
    # a slow network by its work, not by a clock: as much goes over it eight times, so that transfer is the largest part
    # of a step also where memory is slow (backward and optimizer pass over the same eight megabytes)
    more = torch.zeros(7, 2_000_000)

    def send_more(_, bucket):
        """DDP's own mean of the gradients, behind seven all-reduces of as much."""
        if wanted.get("hook") == "sync":
            for each in (*more, bucket.buffer().div_(dist.get_world_size())):
                dist.all_reduce(each)
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done
        ahead = [dist.all_reduce(each, async_op=True).get_future() for each in more]
        gradients = bucket.buffer().div_(dist.get_world_size())
        ahead.append(dist.all_reduce(gradients, async_op=True).get_future())
        return torch.futures.collect_all(ahead).then(lambda _: gradients)

    model.register_comm_hook(None, send_more)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for count, rows in enumerate(DataLoader(Samples(), batch_size=8), start=1):
    with model.no_sync() if count % num_micro else contextlib.nullcontext():
        model(rows).square().mean().backward()
    if count % num_micro == 0:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
