"""Mistake: the ranks have loaders of unequal lengths; the longer one waits for the others for ever."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(36, 4)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
mine = Subset(dataset, range(rank * 20, min(rank * 20 + 20, len(dataset))))  # 20 samples and 16
loader = DataLoader(mine, batch_size=4)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
