"""`CropReader`: boxes of a list of samples into the fields of one buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, IntArray, NDArray
from rankwise.data.crops.exceptions import DamacyError, DecodeError, StorageError
from rankwise.data.crops.reading.boxes import FieldBoxes
from rankwise.data.crops.reading.checking import box_text, unreadable
from rankwise.data.crops.reading.field import MASK_SUFFIX, CropField
from rankwise.data.crops.reading.planning import field_jobs, field_mask
from rankwise.data.crops.reading.report import CropPlan, CropReport, FieldJob, FieldMask
from rankwise.data.store.boxes import BoxError, BoxReport
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

__all__ = ["CropReader"]


class CropReader:
    """Plans and reads batches of crops; thread-safe. What goes wrong with one sample does not touch the others.

    Args:
        fields: name -> what it looks like, in the order in which batches show them.
        reader: the engine; the caller closes one that it gives, None makes one.

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
        """Return how a batch is read; touches metadata and shard indexes only.

        Samples that cannot be read at all (boxes that stick out, dtypes that do not convert) are noted in the plan.

        Args:
            boxes: for each field, what fills it.
            ids: int64[B], numbers of the samples, for messages.
            failed: samples that are known to be bad, by place in the batch.

        Raises:
            ConfigError: `boxes` has other fields than this reader.
        """
        if boxes.keys() != self.fields.keys():
            raise ConfigError(f"the reader has the fields {sorted(self.fields)}, the boxes are for {sorted(boxes)}")
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
        """Reserve room in a buffer and fill it. Rows of samples that could not be read are zeros.

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
        """Close the engine, if it is this reader's own."""
        if self._owns_reader:
            self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """The part of a field that a job fills, with the axes of its boxes."""
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
