"""Mistake: each rank draws its own split, so samples held out by one rank are trained on by another."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
train_set, val_set = random_split(TensorDataset(x, x.sum(1, keepdim=True)), [32, 8])
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=8 // size, sampler=sampler)
val_loader = DataLoader(val_set, batch_size=4)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model.module(inputs), targets) for inputs, targets in val_loader)
    dist.all_reduce(total)
dist.destroy_process_group()
