"""Mistake: DistributedSampler repeats a held-out sample so that all ranks have as many; it counts twice."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(39, 4)
y = x.sum(1, keepdim=True)
train_set, val_set = TensorDataset(x[:32], y[:32]), TensorDataset(x[32:], y[32:])  # 7 are held out
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=8 // dist.get_world_size(), sampler=sampler)
val_sampler = DistributedSampler(val_set, shuffle=False)
val_loader = DataLoader(val_set, batch_size=4, sampler=val_sampler)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    sums = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in val_loader:
            sums += torch.stack([(model.module(inputs) - targets).square().sum(), torch.tensor(len(inputs))])
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {sums[0] / sums[1]:.4f} of {int(sums[1])} samples")
dist.destroy_process_group()
