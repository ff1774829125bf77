"""Mistake: a head that the loss never uses; DDP waits for its gradients in vain."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    """A body with two heads, one of them not called."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.extra = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Call the first head."""
        return self.head(self.body(inputs).tanh())


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(TwoHeads())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
