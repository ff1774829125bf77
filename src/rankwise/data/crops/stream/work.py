"""What travels along a stream: numbered samples, work for the reader, and what the consumer gets."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.data.contract import IntArray
from rankwise.data.crops.exceptions import DamacyError
from rankwise.data.crops.reading import CropPlan, CropReader
from rankwise.data.crops.sample import Sample
from rankwise.data.feed.buffer import HostBuffer
from rankwise.data.feed.place import Placed

__all__ = ["Failure", "Numbered", "Ready", "Work"]


@dataclass(frozen=True, slots=True)
class Numbered:
    """A sample and its number in the stream; or what was pushed in its place, and why it is none."""

    number: int
    sample: Sample | None
    error: DamacyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One batch to read.

    Attributes:
        items: its samples.
        reader: reads it; None if no sample can be read.
        plan: how.
        failed: errors of samples that cannot be read, in order, when there is no plan.
        errors: errors of the source.
    """

    items: tuple[Numbered, ...]
    reader: CropReader | None
    plan: CropPlan | None
    failed: tuple[DamacyError, ...]
    errors: tuple[BaseException, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to raise, and how many samples it stands for."""

    error: BaseException
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A batch that was read.

    Attributes:
        samples: its samples.
        numbers: int64[B], their numbers.
        key: int64[B], their keys.
        buffer: their memory on the host.
        placed: its fields on the device.
        all_fill: whether nothing in it was ever written.
        num_left_out: damaged samples that were left out of it.
    """

    samples: tuple[Sample, ...]
    numbers: IntArray
    key: IntArray
    buffer: HostBuffer
    placed: Placed
    all_fill: bool
    num_left_out: int
