"""From the boxes of a batch to requests of the reading engine: one for each run of neighbouring samples of a field."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray
from rankwise.data.crops.reading.boxes import FieldBoxes
from rankwise.data.crops.reading.field import CropField
from rankwise.data.crops.reading.report import FieldJob, FieldMask
from rankwise.data.store.boxes import BoxRequest
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

__all__ = ["field_jobs", "field_mask"]


def field_jobs(
    name: str, field: CropField, boxes: FieldBoxes, *, rows: IntArray, readable: BoolArray, reader: BoxReader
) -> Iterator[FieldJob]:
    """Yield how the readable samples of one field are read.

    Args:
        name: name of the field.
        field: what it looks like.
        boxes: what fills it.
        rows: int64[n], places of the samples that `boxes` fill.
        readable: bool[B], samples that are to be read.
        reader: the engine that plans.

    Raises:
        ConfigError: the boxes of a sample do not have as many elements as the field.
    """
    per_sample = len(boxes.which) // max(1, len(rows))
    if len(rows) and per_sample * math.prod(boxes.shape) != math.prod(field.shape):
        raise ConfigError(
            f"field {name!r} takes {list(field.shape)} elements of each sample; {per_sample} boxes of "
            f"{list(boxes.shape)} do not fill it"
        )
    for first, stop in _runs(rows, readable):
        part = slice(first * per_sample, stop * per_sample)
        request = _request(field, boxes, part)
        place = int(rows[first])
        yield FieldJob(
            field=name,
            first=place,
            stop=place + stop - first,
            per_sample=per_sample,
            boxes=reader.plan(request),
        )


def field_mask(boxes: FieldBoxes, *, rows: IntArray, readable: BoolArray) -> FieldMask:
    """Return which elements of the readable samples lie inside their arrays."""
    kept = readable[rows]
    per_sample = len(boxes.which) // max(1, len(rows))
    ndim = len(boxes.shape)
    starts = boxes.starts.reshape(len(rows), per_sample, ndim)[kept]
    which = boxes.which.reshape(len(rows), per_sample)[kept]
    sizes = np.array([a.shape if a.ndim == ndim else boxes.shape for a in boxes.arrays], dtype=np.int64)[which]
    extent = np.array(boxes.shape, dtype=np.int64)
    lows = np.clip(-starts, 0, extent)
    return FieldMask(rows=rows[kept], shape=boxes.shape, lows=lows, highs=np.clip(sizes - starts, lows, extent))


def _runs(rows: IntArray, readable: BoolArray) -> Iterator[tuple[int, int]]:
    """Runs of `rows` that are readable and neighbours in the batch, as (first, stop) indices into `rows`."""
    kept = np.flatnonzero(readable[rows])
    if not len(kept):
        return
    breaks = np.flatnonzero((np.diff(kept) != 1) | (np.diff(rows[kept]) != 1)) + 1
    for run in np.split(kept, breaks):
        yield int(run[0]), int(run[-1]) + 1


def _request(field: CropField, boxes: FieldBoxes, part: slice) -> BoxRequest:
    """A request that names only the arrays which its boxes take."""
    used, which = np.unique(boxes.which[part], return_inverse=True)
    arrays = tuple(boxes.arrays[int(number)] for number in used)
    scale, offset = _scalings(field, boxes, used)
    return BoxRequest(
        arrays=arrays,
        which=which.astype(np.int64),
        starts=boxes.starts[part],
        shape=boxes.shape,
        dtype=field.dtype,
        pad=field.pad,
        scale=scale,
        offset=offset,
    )


def _scalings(field: CropField, boxes: FieldBoxes, used: IntArray) -> tuple[FloatArray | None, FloatArray | None]:
    found = [field.scaling(boxes.arrays[int(number)]) for number in used]
    if field.normalise is None:
        return None, None
    known = [scaling for scaling in found if scaling is not None]
    return np.array([s.scale for s in known]), np.array([s.offset for s in known])
