"""Plans and reports of batches of crops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, ReadReport
from rankwise.data.crops.exceptions import DamacyError
from rankwise.data.store import BoxPlan
from rankwise.errors import SampleError

__all__ = ["CropPlan", "CropReport", "FieldJob", "FieldMask"]


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
class FieldMask:
    """The part of each box inside its array.

    Attributes:
        rows: int64[n], places of the samples in the batch.
        shape: extent of every box.
        lows: int64[n, k, ndim], first element inside, relative to the box's start.
        highs: int64[n, k, ndim], the element after the last one inside.
    """

    rows: IntArray
    shape: tuple[int, ...]
    lows: IntArray
    highs: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CropPlan:
    """The plan for one batch. Made by `CropReader.plan`.

    Attributes:
        ids: int64[B], the numbers of the samples.
        jobs: the reads.
        masks: validity of each field that has a mask.
        failed: samples that cannot be read at all, by their place in the batch.
    """

    ids: IntArray
    jobs: tuple[FieldJob, ...]
    masks: Mapping[str, tuple[FieldMask, ...]] = field(default_factory=dict)
    failed: Mapping[int, DamacyError] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CropReport:
    """The result of reading one batch.

    Attributes:
        valid: bool[B], False for a sample that could not be read; its rows are then zeros.
        errors: one for each invalid sample, in batch order.
        fill: bool[B], True if every element of a sample is the fill value because it was never written.
        fill_chunks: chunks that are not in the store, read as the fill value.
        fast_chunks: chunks that our own decoders decoded.
        slow_chunks: chunks that zarr-python decoded.
        cached_chunks: chunks that were already decoded.
    """

    valid: BoolArray
    errors: tuple[DamacyError, ...]
    fill: BoolArray
    fill_chunks: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    cached_chunks: int = 0

    @property
    def all_fill(self) -> bool:
        """Whether no sample of the batch has any element that was written."""
        return bool(self.valid.any() and np.all(self.fill[self.valid]))

    def as_read_report(self) -> ReadReport:
        """Return the report for the contract's `Source.read`."""
        return ReadReport(
            valid=self.valid,
            fill_chunks=self.fill_chunks,
            fast_chunks=self.fast_chunks,
            slow_chunks=self.slow_chunks,
            errors=tuple(error for error in self.errors if isinstance(error, SampleError)),
        )
