"""The seams of the data's way: what order, sources, loaders and the training step say to each other.

Everything here is frozen, slotted and keyword-only, and needs numpy and the standard library alone.
A name changes only together with a page in ``docs/decisions``.
"""

from rankwise.data.contract.cutting import (
    num_micro_batches,
    sample_keys,
    share_sizes,
    shares,
    smallest_share,
    whole_speeds,
)
from rankwise.data.contract.protocols import Batch, BatchBuffer, BatchLoader, Order, Plan, Source, Stateful
from rankwise.data.contract.types import JSON, BoolArray, DType, FloatArray, IntArray, NDArray
from rankwise.data.contract.values import FieldSpec, OrderState, ReadReport, Share, Step, choose_fields

__all__ = [
    "JSON",
    "Batch",
    "BatchBuffer",
    "BatchLoader",
    "BoolArray",
    "DType",
    "FieldSpec",
    "FloatArray",
    "IntArray",
    "NDArray",
    "Order",
    "OrderState",
    "Plan",
    "ReadReport",
    "Share",
    "Source",
    "Stateful",
    "Step",
    "choose_fields",
    "num_micro_batches",
    "sample_keys",
    "share_sizes",
    "shares",
    "smallest_share",
    "whole_speeds",
]
