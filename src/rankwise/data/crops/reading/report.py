"""How a batch of crops is read, and how reading it went."""

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
    """One run of neighbouring samples of one field.

    Attributes:
        field: name of the field.
        first: place of its first sample in the batch.
        stop: place after its last one.
        per_sample: boxes that fill one sample.
        boxes: how they are read.
    """

    field: str
    first: int
    stop: int
    per_sample: int
    boxes: BoxPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldMask:
    """Which part of each box lies inside its array.

    Attributes:
        rows: int64[n], places of the samples in the batch.
        shape: extent of every box.
        lows: int64[n, k, ndim], first element inside, counted from the box's start.
        highs: int64[n, k, ndim], the element after the last one inside.
    """

    rows: IntArray
    shape: tuple[int, ...]
    lows: IntArray
    highs: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CropPlan:
    """How one batch is read. Made by `CropReader.plan`.

    Attributes:
        ids: int64[B], the numbers of the samples.
        jobs: what is read.
        masks: validity of each field that has a mask.
        failed: samples that cannot be read at all, by their place in the batch.
    """

    ids: IntArray
    jobs: tuple[FieldJob, ...]
    masks: Mapping[str, tuple[FieldMask, ...]] = field(default_factory=dict)
    failed: Mapping[int, DamacyError] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Samples of the batch, those that fail included."""
        return len(self.ids)

    @property
    def num_chunks(self) -> int:
        """Different chunks that are touched, counted per field."""
        return sum(job.boxes.num_chunks for job in self.jobs)

    @property
    def read_bytes(self) -> int:
        """Encoded bytes to read, as far as known beforehand."""
        return sum(job.boxes.read_bytes for job in self.jobs)

    @property
    def decode_bytes(self) -> int:
        """Bytes to decode."""
        return sum(job.boxes.decode_bytes for job in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CropReport:
    """How reading one batch went.

    Attributes:
        valid: bool[B], False where a sample could not be read; its rows are zeros then.
        errors: one for each sample that is not valid, in batch order.
        fill: bool[B], True where every element of a sample is a fill value, as nothing was ever written there.
        fill_chunks: chunks that are not in the store and stand for the fill value.
        fast_chunks: chunks that our own decoders decoded.
        slow_chunks: chunks that zarr-python decoded.
        cached_chunks: chunks that were decoded already.
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
        """Whether no sample of the batch holds anything that was written."""
        return bool(self.valid.any() and np.all(self.fill[self.valid]))

    def as_read_report(self) -> ReadReport:
        """Return what the contract's `Source.read` returns."""
        return ReadReport(
            valid=self.valid,
            fill_chunks=self.fill_chunks,
            fast_chunks=self.fast_chunks,
            slow_chunks=self.slow_chunks,
            errors=tuple(error for error in self.errors if isinstance(error, SampleError)),
        )
