"""Plans and reads batches of crops, for both kinds of pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import BatchBuffer, BoolArray, FieldSpec, IntArray, NDArray, ReadReport, Share
from rankwise.data.crops.exceptions import DamacyError, DecodeError, StorageError, sample_error
from rankwise.data.crops.fields import MASK_SUFFIX, CropField, FieldBoxes, column_specs, field_specs, unreadable
from rankwise.data.store.boxes import BoxReport, BoxRequest
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldJob:
    """One run of adjacent samples of one field.

    Attributes:
        field: name of the field.
        first: place of its first sample in the batch.
        stop: place after its last one.
        per_sample: number of boxes per sample.
        boxes: the plan for the boxes.
    """

    field: str
    first: int
    stop: int
    per_sample: int
    boxes: BoxPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CropPlan:
    """The plan for one batch; implements `Plan`. Made by `plan_crops`.

    Attributes:
        engine: reads the boxes.
        specs: the fields to read, and their masks.
        ids: int64[B], the numbers of the samples.
        jobs: the reads.
        masks: for each field that has a mask, its boxes.
        failed: samples that cannot be read at all, by their place in the batch.
        columns: further fields, which are known without reading, by name.
        share: the share of an order that the batch is, if there is one.
    """

    engine: BoxReader
    specs: Mapping[str, FieldSpec]
    ids: IntArray
    jobs: tuple[FieldJob, ...]
    masks: Mapping[str, Sequence[FieldBoxes]]
    failed: Mapping[int, DamacyError]
    columns: Mapping[str, NDArray]
    share: Any  # a `Share` for a `Source`

    @property
    def capacity(self) -> Mapping[str, int]:
        """Empty: no field is ragged."""
        return {}

    @property
    def num_samples(self) -> int:
        """Number of samples of the batch, including those that fail."""
        return len(self.ids)

    @property
    def num_chunks(self) -> int:
        """Number of distinct chunks to read, counted per field."""
        return sum(job.boxes.num_chunks for job in self.jobs)

    @property
    def read_bytes(self) -> int:
        """Encoded bytes to read, as far as known in advance."""
        return sum(job.boxes.read_bytes for job in self.jobs)

    @property
    def decode_bytes(self) -> int:
        """Bytes to decode."""
        return sum(job.boxes.decode_bytes for job in self.jobs)

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the boxes themselves, as stored."""
        wanted = 0
        for job in self.jobs:
            request = job.boxes.request
            sizes = np.array([array.dtype.itemsize for array in request.arrays], dtype=np.int64)
            wanted += int(sizes[request.which].sum()) * math.prod(request.shape)
        return wanted

    def hint(self) -> None:
        """Ask the system to read the bytes soon. Best effort."""
        self.engine.hint([job.boxes for job in self.jobs])

    def read(self, into: BatchBuffer) -> CropReport:
        """Reserve a buffer and fill it; bad samples become zeros.

        Raises:
            DataError: the storage cannot be read at all.
        """
        into.reserve({**self.specs, **column_specs(self.columns)}, self.num_samples, {})
        outs = [into.arrays(job.field)[0][job.first : job.stop] for job in self.jobs]
        reports = self.engine.read(
            [
                (job.boxes, out.reshape(len(out) * job.per_sample, *job.boxes.request.shape))
                for job, out in zip(self.jobs, outs, strict=True)
            ]
        )
        for name, parts in self.masks.items():
            mask = into.arrays(name + MASK_SUFFIX)[0]
            mask[...] = False
            for part in parts:
                _mark_inside(mask, part)
        report = _combined(self, reports)
        for row in np.flatnonzero(~report.valid).tolist():
            for name in self.specs:
                into.arrays(name)[0][row] = 0
        for name, values in self.columns.items():
            into.arrays(name)[0][...] = values
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class CropReport(ReadReport):
    """The result of reading one batch; rows of samples that could not be read are zeros.

    Attributes:
        errors: one `DamacyError` for each invalid sample, in batch order.
        fill: bool[B], True if every element of a sample is the fill value because it was never written.
        cached_chunks: chunks that were already decoded.
    """

    errors: tuple[Any, ...] = ()
    fill: BoolArray
    cached_chunks: int = 0

    @property
    def all_fill(self) -> bool:
        """Whether no sample of the batch has any element that was written."""
        return bool(self.valid.any() and np.all(self.fill[self.valid]))


def _jobs(name: str, field: CropField, boxes: FieldBoxes, readable: BoolArray, engine: BoxReader) -> Iterator[FieldJob]:
    """Yield the reads for the readable samples of one field.

    Raises:
        ConfigError: the boxes of a sample have another number of elements than the field.
    """
    rows, per_sample = boxes.rows, boxes.per_sample
    if len(rows) and per_sample * math.prod(boxes.shape) != math.prod(field.shape):
        raise ConfigError(
            f"field {name!r} takes {list(field.shape)} elements of each sample; {per_sample} boxes of "
            f"{list(boxes.shape)} do not match it"
        )
    for first, stop in _runs(rows, readable):
        request = _request(field, boxes, slice(first * per_sample, stop * per_sample))
        place = int(rows[first])
        yield FieldJob(
            field=name,
            first=place,
            stop=place + stop - first,
            per_sample=per_sample,
            boxes=engine.plan(request),
        )


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
    scalings = [scaling for scaling in map(field.scaling, arrays) if scaling is not None]
    return BoxRequest(
        arrays=arrays,
        which=which.astype(np.int64),
        starts=boxes.starts[part],
        shape=boxes.shape,
        dtype=field.dtype,
        pad=field.pad,
        scale=np.array([each.scale for each in scalings], dtype=np.float64) if scalings else None,
        offset=np.array([each.offset for each in scalings], dtype=np.float64) if scalings else None,
    )


def plan_crops(
    fields: Mapping[str, CropField],
    boxes: Mapping[str, Sequence[FieldBoxes]],
    engine: BoxReader,
    *,
    ids: IntArray,
    failed: Mapping[int, DamacyError] | None = None,
    columns: Mapping[str, NDArray] | None = None,
    share: Share | None = None,
) -> CropPlan:
    """Return the plan for a batch of crops; reads metadata and shard indexes only. Thread-safe.

    An error of one sample does not affect the others: samples that cannot be read at all (boxes beyond the array,
    impossible conversions) are recorded in the plan.

    Args:
        fields: the fields to read.
        boxes: for each of them, the boxes that fill it.
        engine: reads the boxes; the caller closes it.
        ids: int64[B], numbers of the samples, for messages.
        failed: samples that are already known to be bad, by place in the batch.
        columns: values of further fields, with a row for each sample.
        share: the share of an order that the batch is, if there is one.

    Raises:
        ConfigError: a mask would have the name of a field.
    """
    given = [(name, fields[name], part) for name, parts in boxes.items() for part in parts]
    bad = dict(failed or {})
    for _, field, part in given:
        bad = {**unreadable(field, part, ids), **bad}
    readable = np.ones(len(ids), dtype=np.bool_)
    readable[list(bad)] = False
    return CropPlan(
        engine=engine,
        specs=field_specs(fields),
        ids=ids,
        jobs=tuple(job for name, field, part in given for job in _jobs(name, field, part, readable, engine)),
        masks={name: boxes[name] for name, field in fields.items() if field.mask},
        failed=bad,
        columns=columns or {},
        share=share,
    )


def _mark_inside(mask: NDArray, boxes: FieldBoxes) -> None:
    """Set the elements of a field's mask that are inside their arrays."""
    extent = np.array(boxes.shape, dtype=np.int64)
    low = np.clip(-boxes.starts, 0, extent)
    high = np.clip(boxes.sizes() - boxes.starts, low, extent)
    for number, edges in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        row, box = divmod(number, boxes.per_sample)
        place = mask[boxes.rows[row]].reshape(boxes.per_sample, *boxes.shape)[box]
        place[tuple(slice(*span) for span in zip(*edges, strict=True))] = True


def _combined(plan: CropPlan, reports: Sequence[BoxReport]) -> CropReport:
    errors: dict[int, DamacyError] = dict(plan.failed)
    fill = np.full(plan.num_samples, bool(plan.jobs))  # of columns alone nothing was read
    for job, report in zip(plan.jobs, reports, strict=True):
        for error in report.errors:
            row = job.first + error.box // job.per_sample
            if row not in errors:
                request = job.boxes.request
                starts = request.starts[error.box].tolist()
                errors[row] = sample_error(
                    DecodeError if error.damage else StorageError,
                    str(error.error),
                    uri=request.arrays[int(request.which[error.box])].place,
                    aabb=tuple((start, start + extent) for start, extent in zip(starts, request.shape, strict=True)),
                    sample=int(plan.ids[row]),
                    place=error.place,
                )
                errors[row].__cause__ = error.error
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
