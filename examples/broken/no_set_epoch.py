"""Mistake: the sampler is never told the epoch, so each epoch has the order of the first."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(32, 4)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8 // dist.get_world_size(), sampler=sampler)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
