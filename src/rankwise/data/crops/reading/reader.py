"""Plans and reads crops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from rankwise.data.contract import BatchBuffer, BoolArray, FieldSpec, FloatArray, IntArray, NDArray
from rankwise.data.crops.exceptions import DamacyError, DecodeError, StorageError
from rankwise.data.crops.reading.field import MASK_SUFFIX, CropField, FieldBoxes, box_text, unreadable
from rankwise.data.crops.reading.report import CropPlan, CropReport, FieldJob, FieldMask
from rankwise.data.store.boxes import BoxError, BoxReport, BoxRequest
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

__all__ = ["CropReader", "field_jobs", "field_mask"]


def field_jobs(
    name: str, field: CropField, boxes: FieldBoxes, *, rows: IntArray, readable: BoolArray, reader: BoxReader
) -> Iterator[FieldJob]:
    """Yield the reads for the readable samples of one field.

    Args:
        name: name of the field.
        field: its shape and dtype.
        boxes: the boxes that fill it.
        rows: int64[n], places of the samples that `boxes` fill.
        readable: bool[B], samples to read.
        reader: the engine that plans.

    Raises:
        ConfigError: the boxes of a sample have another number of elements than the field.
    """
    per_sample = len(boxes.which) // max(1, len(rows))
    if len(rows) and per_sample * math.prod(boxes.shape) != math.prod(field.shape):
        raise ConfigError(
            f"field {name!r} takes {list(field.shape)} elements of each sample; {per_sample} boxes of "
            f"{list(boxes.shape)} do not match it"
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
    """Return which elements of the readable samples are inside their arrays."""
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
    """Yield runs of `rows` that are readable and adjacent in the batch, as (first, stop) indices into `rows`."""
    kept = np.flatnonzero(readable[rows])
    if not len(kept):
        return
    breaks = np.flatnonzero((np.diff(kept) != 1) | (np.diff(rows[kept]) != 1)) + 1
    for run in np.split(kept, breaks):
        yield int(run[0]), int(run[-1]) + 1


def _request(field: CropField, boxes: FieldBoxes, part: slice) -> BoxRequest:
    """Return a request with only the arrays that its boxes need."""
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


class CropReader:
    """Plans and reads batches of crops; thread-safe. An error of one sample does not affect the others.

    Args:
        fields: name -> field, in the order of the batch.
        reader: the engine, which the caller closes; None makes one.

    Raises:
        ConfigError: a mask would have the name of a field.
    """

    def __init__(self, fields: Mapping[str, CropField], *, reader: BoxReader | None = None) -> None:
        self.fields = dict(fields)
        self.specs = _specs(self.fields)
        self.reader = reader or BoxReader()
        self._owns_reader = reader is None

    def plan(
        self,
        boxes: Mapping[str, FieldBoxes | Sequence[FieldBoxes]],
        *,
        ids: IntArray,
        failed: Mapping[int, DamacyError] | None = None,
    ) -> CropPlan:
        """Return the plan for a batch; reads metadata and shard indexes only.

        Samples that cannot be read at all (boxes beyond the array, impossible conversions) are recorded in the plan.

        Args:
            boxes: for each field, the boxes that fill it.
            ids: int64[B], numbers of the samples, for messages.
            failed: samples that are already known to be bad, by place in the batch.

        Raises:
            ConfigError: `boxes` has other fields than this reader.
        """
        if boxes.keys() != self.fields.keys():
            raise ConfigError(f"the reader has the fields {sorted(self.fields)}, but the boxes are for {sorted(boxes)}")
        groups = {name: (given,) if isinstance(given, FieldBoxes) else tuple(given) for name, given in boxes.items()}
        bad = dict(failed or {})
        for name, parts in groups.items():
            for part in parts:
                for row, error in unreadable(self.fields[name], part, ids, part.placed(len(ids))).items():
                    bad.setdefault(row, error)
        readable = np.ones(len(ids), dtype=np.bool_)
        readable[list(bad)] = False
        jobs: list[FieldJob] = []
        masks: dict[str, tuple[FieldMask, ...]] = {}
        for name, parts in groups.items():
            for part in parts:
                rows = part.placed(len(ids))
                jobs += field_jobs(name, self.fields[name], part, rows=rows, readable=readable, reader=self.reader)
            if self.fields[name].mask:
                masks[name] = tuple(field_mask(p, rows=p.placed(len(ids)), readable=readable) for p in parts)
        return CropPlan(ids=ids, jobs=tuple(jobs), masks=masks, failed=bad)

    def hint(self, plans: Sequence[CropPlan]) -> None:
        """Ask the system to read the bytes of plans soon. Best effort."""
        self.reader.hint([job.boxes for plan in plans for job in plan.jobs])

    def read(self, plan: CropPlan, into: BatchBuffer) -> CropReport:
        """Reserve a buffer and fill it. Rows of samples that could not be read are zeros.

        Raises:
            DataError: the storage cannot be read at all.
        """
        into.reserve(self.specs, plan.num_samples, {})
        outs = [_place(into.arrays(job.field)[0], job) for job in plan.jobs]
        reports = self.reader.read([(job.boxes, out) for job, out in zip(plan.jobs, outs, strict=True)])
        for name, masks in plan.masks.items():
            _write_mask(into.arrays(name + MASK_SUFFIX)[0], masks)
        report = _combined(plan, reports)
        for row in np.flatnonzero(~report.valid).tolist():
            for name in self.specs:
                into.arrays(name)[0][row] = 0
        return report

    def close(self) -> None:
        """Close the engine if this reader made it."""
        if self._owns_reader:
            self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _specs(fields: Mapping[str, CropField]) -> dict[str, FieldSpec]:
    specs = {name: field.spec for name, field in fields.items()}
    for name, field in fields.items():
        if field.mask:
            if name + MASK_SUFFIX in fields:
                raise ConfigError(
                    f"the mask of field {name!r} has the name of the field {name + MASK_SUFFIX!r}: rename it"
                )
            specs[name + MASK_SUFFIX] = FieldSpec(shape=field.shape, dtype=np.dtype(np.bool_))
    return specs


def _place(array: NDArray, job: FieldJob) -> NDArray:
    """Return the part of a field that a job fills, with the axes of its boxes."""
    num_boxes = (job.stop - job.first) * job.per_sample
    return array[job.first : job.stop].reshape(num_boxes, *job.boxes.request.shape)


def _write_mask(array: NDArray, masks: Sequence[FieldMask]) -> None:
    array[...] = False
    for mask in masks:
        for row, lows, highs in zip(mask.rows.tolist(), mask.lows.tolist(), mask.highs.tolist(), strict=True):
            boxes = array[row].reshape(len(lows), *mask.shape)
            for box, low, high in zip(boxes, lows, highs, strict=True):
                box[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = True


def _combined(plan: CropPlan, reports: Sequence[BoxReport]) -> CropReport:
    errors: dict[int, DamacyError] = dict(plan.failed)
    fill = np.ones(plan.num_samples, dtype=np.bool_)
    for job, report in zip(plan.jobs, reports, strict=True):
        for error in report.errors:
            row = job.first + error.box // job.per_sample
            errors.setdefault(row, _sample_error(error, job, int(plan.ids[row])))
        per_sample = report.fill_boxes.reshape(job.stop - job.first, job.per_sample)
        fill[job.first : job.stop] &= per_sample.all(axis=1)
    valid = np.ones(plan.num_samples, dtype=np.bool_)
    valid[list(errors)] = False
    return CropReport(
        valid=valid,
        errors=tuple(errors[row] for row in sorted(errors)),
        fill=fill & valid,
        fill_chunks=sum(report.fill_chunks for report in reports),
        fast_chunks=sum(report.fast_chunks for report in reports),
        slow_chunks=sum(report.slow_chunks for report in reports),
        cached_chunks=sum(report.cached_chunks for report in reports),
    )


def _sample_error(error: BoxError, job: FieldJob, sample: int) -> DamacyError:
    request = job.boxes.request
    uri = request.arrays[int(request.which[error.box])].place
    starts = request.starts[error.box].tolist()
    aabb = tuple((start, start + extent) for start, extent in zip(starts, request.shape, strict=True))
    kind = DecodeError if error.damage else StorageError
    where = "" if error.place in str(error.error) else f" ({error.place})"
    made = kind(
        f"sample {sample} cannot be read: box {box_text(aabb)} of {uri}{where}: {error.error}",
        uri=uri,
        aabb=aabb,
        sample=sample,
        place=error.place,
    )
    made.__cause__ = error.error
    return made
