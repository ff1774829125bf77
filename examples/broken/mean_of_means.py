"""Mistake: each rank divides by its own number of tokens, then DDP takes the mean of these means."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(32, 4)
num_tokens = torch.arange(32.0) % 5 + 1  # samples of unequal lengths
dataset = TensorDataset(x, (x.sum(1) > 0).long(), num_tokens)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8 // dist.get_world_size(), sampler=sampler)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels, tokens in loader:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        loss = (losses * tokens).sum() / tokens.sum()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
