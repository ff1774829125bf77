"""The protocols between the parts of the data path: order, sources, loaders and the training step.

All value types are frozen, slotted and keyword-only. This package needs only NumPy and the standard library.
Changing a name here needs a page in ``docs/decisions``.
"""

from rankwise.data.contract.bases import BaseLoader, BaseSamples, BaseSource, not_drawn
from rankwise.data.contract.cuts import (
    num_micro_batches,
    sample_keys,
    share_sizes,
    shares,
    smallest_share,
    whole_speeds,
)
from rankwise.data.contract.protocols import (
    BaseOrder,
    Batch,
    BatchBuffer,
    BatchLoader,
    Grid,
    Order,
    Plan,
    Samples,
    Source,
    Stateful,
)
from rankwise.data.contract.values import (
    JSON,
    BoolArray,
    DType,
    FieldSpec,
    FloatArray,
    IntArray,
    ListedIds,
    Locality,
    NDArray,
    OrderState,
    ReadReport,
    Share,
    Step,
    StepIds,
    choose_fields,
    whole_number,
)

__all__ = [
    "JSON",
    "BaseLoader",
    "BaseOrder",
    "BaseSamples",
    "BaseSource",
    "Batch",
    "BatchBuffer",
    "BatchLoader",
    "BoolArray",
    "DType",
    "FieldSpec",
    "FloatArray",
    "Grid",
    "IntArray",
    "ListedIds",
    "Locality",
    "NDArray",
    "Order",
    "OrderState",
    "Plan",
    "ReadReport",
    "Samples",
    "Share",
    "Source",
    "Stateful",
    "Step",
    "StepIds",
    "choose_fields",
    "not_drawn",
    "num_micro_batches",
    "sample_keys",
    "share_sizes",
    "shares",
    "smallest_share",
    "whole_number",
    "whole_speeds",
]
