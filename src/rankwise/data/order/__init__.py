"""Decides which sample each rank reads at each step: pure arithmetic, no I/O, no torch.

`Order` maps (seed, epoch, position) to samples; `BatchSampler` gives a rank's part of it to torch's ``DataLoader``;
`shard` splits an explicit list among ranks; a `SplitRule` divides data into parts such as train and validation.
"""

from rankwise.data.order.order import Order
from rankwise.data.order.sampler import BatchSampler, shard
from rankwise.data.order.split_rule import Groups, SplitRule, exact_parts, part_at, place_of_group, place_of_samples

__all__ = [
    "BatchSampler",
    "Groups",
    "Order",
    "SplitRule",
    "exact_parts",
    "part_at",
    "place_of_group",
    "place_of_samples",
    "shard",
]
