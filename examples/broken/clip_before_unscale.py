"""Mistake: gradients are clipped while they are still scaled, so the clip cuts nearly everything."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
