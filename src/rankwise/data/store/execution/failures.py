"""Failures of chunks, the boxes that they affect, and warnings about slow arrays and lossy conversions."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from rankwise._process.place import speaking_rank
from rankwise.data.contract import BoolArray, DType, IntArray
from rankwise.data.store.boxes import BoxError, BoxRequest, conversion_loss
from rankwise.data.store.files import ArrayCheck
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan import BoxPlan
from rankwise.errors import DataError

__all__ = [
    "REPLACED",
    "ChunkFailure",
    "box_errors",
    "changed_chunks",
    "place_of",
    "unwritten",
    "warn_lossy_conversion",
    "warn_lossy_conversions",
    "warn_slow_arrays",
]

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


def place_of(plan: BoxPlan, chunk: int) -> str:
    """Return the name of a chunk: array, coordinates, file and bytes."""
    table = plan.chunks
    array = plan.request.arrays[int(table.array[chunk])]
    where = f"chunk {tuple(table.coords[chunk].tolist())} of the array {array.place}"
    offset, length = int(table.offset[chunk]), int(table.length[chunk])
    path = plan.files[int(table.file[chunk])].path
    return f"{where} (bytes {offset} to {offset + length - 1} of {path})" if length > 0 else f"{where} ({path})"


def box_errors(plan: BoxPlan, failed: dict[int, ChunkFailure]) -> tuple[BoxError, ...]:
    """Return one error for each box that is invalid, including those known from planning."""
    found = plan.failed
    for chunk, failure in sorted(failed.items()):
        place = place_of(plan, chunk)
        mend = ": copy or write the store again" if failure.damage else ""
        error = DataError(f"{place} {failure.what}{mend}")
        error.__cause__ = failure.cause
        is_unfit = failure.boxes is not None
        told = partial(BoxError, place=place, error=error, damage=failure.damage, unfit=is_unfit)
        boxes = _boxes(plan, chunk) if failure.boxes is None else failure.boxes
        for box in boxes.tolist():
            found.setdefault(box, told(box=box))
    return tuple(found[box] for box in sorted(found))


def _boxes(plan: BoxPlan, chunk: int) -> IntArray:
    bounds = plan.targets.bounds
    return np.unique(plan.targets.box[bounds[chunk] : bounds[chunk + 1]])


def unwritten(plan: BoxPlan, absent: IntArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return the `missing_boxes`, `fill_boxes` and `lost_boxes` of a report, bool[B] each.

    Args:
        plan: the plan.
        absent: chunks that turned out to be missing during the read; the plan knows the others.
    """
    missing: BoolArray = plan.chunks.offset == -1
    exists = np.array([facts.exists for facts in plan.files], dtype=np.bool_)
    lost: BoolArray = missing & ~exists[plan.chunks.file]
    missing[absent] = lost[absent] = True
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
        error = None if "://" in array.place else array_check.changed(array)
        if error is not None:
            members = np.flatnonzero(plan.chunks.array == which).tolist()
            found |= dict.fromkeys(members, ChunkFailure(str(error), damage=False, cause=error))
    return found


_LOG = logging.getLogger(__name__)
_said: set[str] = set()
_judged: set[tuple[DType, DType, bool]] = set()


def warn_slow_arrays(arrays: Iterable[ArrayMeta]) -> None:
    """Warn about the first array of each kind that only zarr-python decodes: once per process, on the main rank."""
    for array in arrays:
        why = array.codec.why
        if array.codec.kind != "zarr" or why in _said:
            continue
        _said.add(why)
        if speaking_rank(os.environ) == 0:
            _LOG.warning(
                "%s is decoded by zarr-python, chunk by chunk, which is slower than the compiled kernel: %s. Other "
                "arrays of this kind are not reported; statistics count their chunks as slow",
                array.place,
                why,
            )


def warn_lossy_conversions(request: BoxRequest) -> None:
    """Warn about the first array of each conversion that may lose information: once, on the main rank.

    Values that do not fit an integer dtype are not part of this: they raise errors, value by value.
    """
    scaled = request.scale is not None
    for stored in {array.dtype for array in request.arrays}:  # called for every plan: it must be cheap
        if (stored, request.dtype, scaled) not in _judged:
            place = next(array.place for array in request.arrays if array.dtype == stored)
            warn_lossy_conversion(place, stored, request.dtype, scaled=scaled)


def warn_lossy_conversion(place: str, stored: DType, wanted: DType, *, scaled: bool = False) -> None:
    """Warn about one array, as `warn_lossy_conversions` does."""
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
