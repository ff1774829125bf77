"""Failures of chunks, the boxes that they affect, and warnings about slow arrays and lossy conversions."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from rankwise._process.place import speaking_rank
from rankwise.data.contract import BoolArray, DType, IntArray
from rankwise.data.store.boxes import BoxError, BoxRequest, conversion_loss
from rankwise.data.store.files.facts import ArrayCheck
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.shard import MISSING
from rankwise.errors import DataError

REPLACED = (
    "is in a file that was replaced or changed after it was first read: reopen the store, and do not "
    "write to it while it is read"
)


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """One chunk that could not be read.

    Attributes:
        what: what happened, in words.
        damage: whether the content is damaged; False for storage errors.
        cause: the underlying error.
        boxes: the boxes with values that do not fit the requested dtype, if this is the only failure; None
            = another failure, which affects all boxes that the chunk fills.
    """

    what: str
    damage: bool = True
    cause: BaseException | None = None
    boxes: IntArray | None = None


def box_errors(plan: BoxPlan, failed: dict[int, ChunkFailure]) -> dict[int, BoxError]:
    """Return one error for each box that is invalid, including those known from planning."""
    found, table = plan.failed, plan.chunks
    for chunk, failure in sorted(failed.items()):
        offset, length = int(table.offset[chunk]), int(table.length[chunk])
        where = plan.files[int(table.file[chunk])].path
        where = f"bytes {offset} to {offset + length - 1} of {where}" if length > 0 else where
        array = plan.request.arrays[int(table.array[chunk])]
        place = f"chunk {tuple(table.coords[chunk].tolist())} of the array {array.place} ({where})"
        mend = ": copy or write the store again" if failure.damage and failure.what != REPLACED else ""
        error = DataError(f"{place} {failure.what}{mend}")
        error.__cause__ = failure.cause
        is_unfit = failure.boxes is not None
        told = partial(BoxError, place=place, error=error, damage=failure.damage, unfit=is_unfit)
        boxes = failure.boxes
        if boxes is None:
            boxes = plan.targets.box[plan.targets.bounds[chunk] : plan.targets.bounds[chunk + 1]]
        for box in boxes.tolist():
            found.setdefault(box, told(box=box))
    return found


def unwritten(plan: BoxPlan, absent: BoolArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return the `missing_boxes`, `fill_boxes` and `lost_boxes` of a report, bool[B] each.

    Args:
        plan: the plan.
        absent: bool[K], chunks that turned out to be missing during the read; the plan knows the others.
    """
    missing: BoolArray = plan.chunks.offset == MISSING
    lost = absent.copy()
    lost[missing] = [not plan.files[file].exists for file in plan.chunks.file[missing].tolist()]
    missing |= absent
    filled = ~_touched(plan, ~missing)
    if plan.request.runs is not None:  # a run of no rows has no chunks
        filled &= plan.request.runs.lengths > 0
    return _touched(plan, missing), filled, _touched(plan, lost)


def _touched(plan: BoxPlan, chosen: BoolArray) -> BoolArray:
    """Return which boxes need any of some chunks, bool[B]."""
    touched: BoolArray = np.zeros(len(plan.request), dtype=np.bool_)
    if chosen.all():
        touched[plan.targets.box] = True
    elif chosen.any():
        touched[plan.targets.box[np.repeat(chosen, np.diff(plan.targets.bounds))]] = True
    return touched


def changed_chunks(plan: BoxPlan, array_check: ArrayCheck) -> dict[int, ChunkFailure]:
    """Return the chunks on local disks that differ from what the plan and the caches know.

    Their file was replaced, modified, removed, or created, or their whole array was replaced. This asks the system,
    because open files and cached chunks still give the old data.
    """
    found, now_s = dict[int, ChunkFailure](), time.monotonic()
    for number, facts in enumerate(plan.files):
        if array_check.replaced(facts, now_s):
            found |= dict.fromkeys(np.flatnonzero(plan.chunks.file == number).tolist(), ChunkFailure(REPLACED))
    for which in np.unique(plan.chunks.array).tolist():
        array = plan.request.arrays[which]
        error = None if array.is_remote else array_check.changed(array)
        if error is not None:
            members = np.flatnonzero(plan.chunks.array == which).tolist()
            found |= dict.fromkeys(members, ChunkFailure(str(error), damage=False, cause=error))
    return found


_LOG = logging.getLogger(__name__)
_SLOW = (
    "%s is decoded by zarr-python, chunk by chunk, which is slower than the compiled kernel: %s. Other arrays of this "
    "kind are not reported; statistics count their chunks as slow"
)
_said: set[str] = set()
_judged: set[tuple[DType, DType, bool]] = set()


def warn_arrays(request: BoxRequest) -> None:
    """Warn about the first array of each kind that is slow, and of each conversion that may lose information.

    Slow arrays are those that only zarr-python decodes. Conversions to an integer dtype that some values do not fit
    raise errors, value by value. Once per process, on the main rank.
    """
    scaled = request.scale is not None
    for array in request.arrays:  # for every plan: it must be cheap
        if array.codec.kind == "zarr" and array.codec.why not in _said:
            _said.add(array.codec.why)
            if speaking_rank(os.environ) == 0:
                _LOG.warning(_SLOW, array.place, array.codec.why)
        if (array.dtype, request.dtype, scaled) not in _judged:
            warn_lossy_conversion(array.place, array.dtype, request.dtype, scaled=scaled)


def warn_lossy_conversion(place: str, stored: DType, wanted: DType, *, scaled: bool = False) -> None:
    """Warn about one array, as `warn_arrays` does."""
    if (stored, wanted, scaled) in _judged:
        return
    _judged.add((stored, wanted, scaled))
    loss = conversion_loss(stored, wanted, scaled=scaled)
    if loss and speaking_rank(os.environ) == 0:
        _LOG.warning(
            "%s holds %s and is read as %s: %s. Another dtype= keeps them; other arrays of these dtypes are not "
            "reported",
            place,
            stored,
            wanted,
            loss,
        )
