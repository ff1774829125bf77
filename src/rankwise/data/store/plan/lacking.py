"""Which chunks of a box are not in the store, in words."""

from __future__ import annotations

import numpy as np

from rankwise.data.store.plan.tables import BoxPlan

__all__ = ["name_lacking"]

_MOST_NAMED = 3


def name_lacking(plan: BoxPlan, box: int) -> str:
    """Return such as ``chunks (3,), (4,) of the array PLACE are not in the store``, as far as planning knew.

    Args:
        plan: the plan.
        box: a box with a chunk that is not in the store.
    """
    owner = np.repeat(np.arange(len(plan.chunks)), np.diff(plan.targets.bounds))
    lacking = owner[(plan.targets.box == box) & (plan.chunks.offset[owner] == -1)]
    names = ", ".join(str(tuple(coords)) for coords in plan.chunks.coords[lacking[:_MOST_NAMED]].tolist())
    what = f"chunk{'s' if len(lacking) > 1 else ''} {names}" if len(lacking) else "a chunk"
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    place = plan.request.arrays[int(plan.request.which[box])].place
    return f"{what}{more} of the array {place} {'are' if len(lacking) > 1 else 'is'} not in the store"
