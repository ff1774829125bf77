"""Which sample, at which step, on which rank: pure arithmetic, no I/O, no torch.

`Order` maps (seed, epoch, position) to samples; `BatchSampler` hands a rank's part of it to torch's ``DataLoader``;
`shard` cuts an explicit list among ranks.
"""

from rankwise.data.order.ordering import Order
from rankwise.data.order.sampler import BatchSampler
from rankwise.data.order.sharding import shard

__all__ = ["BatchSampler", "Order", "shard"]
