"""What is noticed of the columns of sparse rows while they go into dense ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import IntArray
from rankwise.data.store.boxes import TWICE, Spread
from rankwise.data.store.plan import BoxPlan

__all__ = ["settled"]


def settled(states: npt.NDArray[np.uint8], plan: BoxPlan, cut: IntArray, spread: Spread) -> npt.NDArray[np.uint8]:
    """Return `OUTSIDE` and `TWICE` of each row, once those are looked at where a column may have come twice.

    Those are rows whose columns do not rise and of which a decoder saw pieces, or met a column twice.

    Args:
        states: uint8[B], of the decoder.
        plan: of the elements.
        cut: int64[n], targets of rows that came in several pieces.
        spread: their columns.
    """
    runs, targets = plan.request.runs, plan.targets
    assert runs is not None
    cut = cut[targets.dst_start[cut] != runs.places[targets.box[cut]]]
    at = targets.dst_start[cut]
    falls = spread.columns[at] <= spread.columns[at - 1]  # from one piece to the next, which no decoder sees
    states[targets.box[cut[falls]]] |= TWICE
    for row in np.flatnonzero(states & TWICE).tolist():
        begin, length = int(runs.places[row]), int(runs.lengths[row])
        columns = spread.columns[begin : begin + length]
        if len(np.unique(columns)) == length:
            states[row] &= ~TWICE & 0xFF
    return states
