"""Work of a stream: what is pulled from the user's iterable, planned, or skipped."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Literal

import numpy as np

from rankwise.data.contract import DType, IntArray
from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import DamacyError, DecodeError, DtypeMismatch, InvalidSample
from rankwise.data.crops.reading import CropField, CropPlan, CropReader
from rankwise.data.crops.sample import Dtype, Sample, parse_dtype, resolved_dtype
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.flow import Flow, Group
from rankwise.data.crops.stream.opener import Openings
from rankwise.data.crops.stream.resolver import ArrayBoxes, check_sample, crops_of, grouped, resolve
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.place import Placed
from rankwise.data.store.reader import BoxReader

__all__ = ["Failure", "Numbered", "Planner", "Puller", "Ready", "SkipBudget", "Work"]


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


class Planner:
    """Plans until the flow is closed.

    Args:
        flow: where samples come from and plans go.
        config: the configuration.
        openings: opened arrays.
        engine: reads boxes.
        meters: times the planning.
    """

    def __init__(
        self, flow: Flow[Numbered, Work, Any], config: Config, openings: Openings, engine: BoxReader, meters: Meters
    ) -> None:
        self._flow = flow
        self._config = config
        self._openings = openings
        self._engine = engine
        self._meters = meters
        self._native: dict[str, tuple[DType, str]] = {}
        self._reader: CropReader | None = None

    def run(self) -> None:
        """Body of the thread."""
        while (group := self._flow.take_group()) is not None:
            try:
                with self._meters.time("plan"):
                    work = self._work(group)
                if work.plan is not None and work.reader is not None:
                    work.reader.hint([work.plan])
            except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
                items = tuple(group.items)
                work = Work(items=items, reader=None, plan=None, failed=(), errors=(*group.errors, error))
            if not self._flow.put_plan(work):
                return

    def _work(self, group: Group[Numbered]) -> Work:
        resolved: dict[int, Mapping[str, ArrayBoxes]] = {}
        failed: dict[int, DamacyError] = {}
        for row, item in enumerate(group.items):
            try:
                resolved[row] = self._resolved(item)
            except DamacyError as error:
                failed[row] = error
        items, errors = tuple(group.items), tuple(group.errors)
        if not resolved:
            return Work(items=items, reader=None, plan=None, failed=tuple(failed.values()), errors=errors)
        reader = self._reader = self._reader or self._make_reader()
        ids = np.array([item.number for item in items], dtype=np.int64)
        plan = reader.plan(grouped(resolved, list(reader.fields)), ids=ids, failed=failed)
        return Work(items=items, reader=reader, plan=plan, failed=(), errors=errors)

    def _resolved(self, item: Numbered) -> dict[str, ArrayBoxes]:
        if item.error is not None:
            raise item.error
        if item.sample is None:
            raise InvalidSample(f"sample {item.number} is none", sample=item.number)
        boxes = resolve(item.sample, item.number, self._config, self._openings)
        for name, each in boxes.items():
            self._check_native(name, each, item.number)
        return boxes

    def _check_native(self, name: str, boxes: ArrayBoxes, number: int) -> None:
        """The first array decides what native means."""
        if parse_dtype(self._config.all_fields[name].dtype) is not Dtype.NATIVE:
            return
        array = boxes.array
        dtype, first = self._native.setdefault(name, (array.dtype, array.place))
        if dtype != array.dtype:
            raise DtypeMismatch(
                f"sample {number} cannot be read: field {name!r} has the native dtype, which is {dtype} since {first}; "
                f"{array.place} holds {array.dtype}: say the dtype that batches shall have",
                uri=array.place,
                sample=number,
            )

    def _make_reader(self) -> CropReader:
        fields = {}
        for name, field in self._config.all_fields.items():
            native = self._native.get(name)
            fields[name] = CropField(
                shape=tuple(field.sample_shape),
                dtype=resolved_dtype(parse_dtype(field.dtype), None if native is None else native[0]),
                pad=field.pad,
                normalise=field.normalise,
                mask=field.pad is not None if field.mask is None else field.mask,
            )
        return CropReader(fields, reader=self._engine)


class Puller:
    """Pulls until the flow is closed.

    Args:
        flow: where samples go.
        config: what they must fit.
        openings: opens their arrays.
        meters: times the iterables.
    """

    def __init__(self, flow: Flow[Numbered, Any, Any], config: Config, openings: Openings, meters: Meters) -> None:
        self._flow = flow
        self._config = config
        self._openings = openings
        self._meters = meters
        self._number = 0

    def run(self) -> None:
        """Body of the thread."""
        while (pushed := self._flow.next_push()) is not None:
            try:
                self._pull(pushed)
            except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
                self._flow.put_trouble(error)

    def _pull(self, pushed: Iterable[Any]) -> None:
        iterator = iter(pushed)
        try:
            while self._flow.wait_for_room():
                try:
                    with self._meters.time("pull"):
                        sample = next(iterator)
                except StopIteration:
                    self._flow.no_sample()
                    return
                self._flow.put_sample(self._numbered(sample))
        finally:
            if isinstance(iterator, GeneratorType):
                iterator.close()

    def _numbered(self, sample: Any) -> Numbered:
        number, self._number = self._number, self._number + 1
        try:
            check_sample(sample, self._config, number)
            for crop in crops_of(sample, self._config).values():
                self._openings.start(crop.uri)
        except DamacyError as error:
            return Numbered(number, sample if isinstance(sample, Sample) else None, error)
        return Numbered(number, sample)


_LOG = logging.getLogger("rankwise.crops")


class SkipBudget:
    """Judges the bad samples of one batch after the other. Only damaged content is left out.

    Args:
        allowed: "raise", or how many samples may be left out.
    """

    def __init__(self, allowed: Literal["raise"] | int) -> None:
        self._allowed = 0 if allowed == "raise" else allowed
        self.num_skipped = 0

    def judge(self, errors: Sequence[DamacyError]) -> DamacyError | None:
        """Return the error to raise for the bad samples of a batch; None if all of them are left out."""
        if not errors:
            return None
        serious = [error for error in errors if not isinstance(error, DecodeError)]
        if not serious and self.num_skipped + len(errors) <= self._allowed:
            self.num_skipped += len(errors)
            for error in errors:
                _LOG.warning("left out (%d of at most %d): %s", self.num_skipped, self._allowed, error)
            return None
        first = (serious or list(errors))[0]
        first.others = tuple(error for error in errors if error is not first)
        for error in first.others:
            first.add_note(f"in the same batch: {error}")
        if self._allowed and not serious:
            first.add_note(
                f"{self.num_skipped} samples were left out before; on_bad_sample={self._allowed} allows no more"
            )
        return first

    def say_total(self) -> None:
        """Say how many samples were left out, if any were."""
        if self.num_skipped:
            _LOG.warning("%d damaged samples were left out in all (at most %d)", self.num_skipped, self._allowed)
