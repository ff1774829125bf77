"""Does it fit? What the batches of an index take, added up before the first one is read."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from rankwise.data.contract import FieldSpec, Order, num_micro_batches
from rankwise.data.crops.budget import Budget, Caps, check_fits
from rankwise.data.crops.index.compiling import Compiled
from rankwise.data.crops.index.crop_index import CropIndex
from rankwise.data.crops.reading.field import MASK_SUFFIX

__all__ = ["settle_index"]


def settle_index(
    index: CropIndex,
    order: Order,
    *,
    fields: Collection[str],
    world_size: int,
    micro_batch: int | None,
    depth: int,
    transformed: bool,
    cache_bytes: int,
    caps: Caps,
) -> Budget:
    """Return what the batches of an index take on one rank.

    Args:
        index: the crops.
        order: which of them form a step.
        fields: names of the fields that are read.
        world_size: number of ranks.
        micro_batch: most crops of one batch.
        depth: steps that may lie ready.
        transformed: whether a transform needs room for crops as they were read.
        cache_bytes: decoded chunks.
        caps: what there is.

    Raises:
        BudgetExceeded: the batches do not fit; the message adds it up and says how much is needed.
    """
    step = order.batch_size
    num_micro = num_micro_batches(step, world_size=world_size, micro_batch=micro_batch)
    rows = math.ceil(math.ceil(step / world_size) / num_micro)
    ahead = max(1, depth)  # the step that was left is looked at for a moment while the next one is read
    slots = (ahead + 1) * num_micro  # the steps that lie ready, and the one in use or being read
    batch = max(1, rows * max(_crop_bytes(made, index, fields) for made in index.stages.known()))
    budget = Budget(
        batch_bytes=batch,
        num_slots=slots,
        scratch_bytes=batch if transformed else 0,
        cache_bytes=cache_bytes,
        device_cap_bytes=caps.device_bytes,
        host_cap_bytes=caps.host_bytes,
        on_host=caps.on_host,
    )
    what = f"{ahead + 1} steps of {num_micro} batches of {rows} crops must fit ({ahead} ready, one in use), and do not"
    mends = [
        "a smaller batch_size of the order",
        *["a smaller depth"] * (depth > 0),
        *["a smaller cache"] * (cache_bytes > 0),
    ]
    check_fits(budget, caps, what=what, mends=mends, slots=slots)
    return budget


def _crop_bytes(made: Compiled, index: CropIndex, fields: Collection[str]) -> int:
    """Bytes of one crop of a stage: the chosen fields, their masks, and labels."""
    specs = dict(index.columns.specs)
    for name, layout in made.layouts.items():
        specs[name] = layout.field.spec
        if layout.field.mask:
            specs[name + MASK_SUFFIX] = FieldSpec(shape=layout.field.shape, dtype=np.dtype(np.bool_))
    return sum(math.prod(specs[name].shape) * specs[name].dtype.itemsize for name in fields if name in specs)
