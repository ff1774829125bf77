"""Mistake: every rank writes the same file, at the same time."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
