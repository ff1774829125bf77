"""Mistake: only rank 0 joins the all-reduce; the job hangs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
for _ in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
if rank == 0:
    total = loss.detach()
    dist.all_reduce(total)
    print(f"loss {total.item() / dist.get_world_size():.3f}")
dist.barrier()
dist.destroy_process_group()
