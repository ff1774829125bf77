"""The steps of a stream: batches of pulled samples, each planned before the one ahead of it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import DamacyError, DtypeMismatch, InvalidSample
from rankwise.data.crops.reading import CropField, CropPlan, CropReader
from rankwise.data.crops.sample import Dtype, parse_dtype, resolved_dtype
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.opener import Openings
from rankwise.data.crops.stream.puller import Failure, Numbered, Pulled, Puller
from rankwise.data.crops.stream.resolver import ArrayBoxes, crops_of, grouped, resolve
from rankwise.data.feed.prefetch import ReadAhead
from rankwise.data.store.reader import BoxReader

__all__ = ["Drained", "Planner", "Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One batch to read.

    Attributes:
        items: its samples.
        reader: reads it; None if no sample can be read.
        plan: how.
        failed: errors of samples that cannot be read, in order, when there is no plan.
        failures: other errors that are raised before it.
    """

    items: tuple[Numbered, ...] = ()
    reader: CropReader | None = None
    plan: CropPlan | None = None
    failed: tuple[DamacyError, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Drained:
    """Somebody waits, and nothing is on its way of the first so many iterables that were pushed."""

    num_pushed: int


class Planner:
    """The steps of a stream, in order.

    A batch goes as soon as it is whole; one that is not goes when nothing follows and a consumer waits.

    Args:
        puller: knows what follows.
        pulled: what it pulled.
        config: the configuration.
        openings: opened arrays.
        engine: reads boxes.
        meters: times the planning.

    Attributes:
        is_awaited: whether a consumer waits, set by who reads the steps.
        doing: what is waited for, for messages; empty while samples are.
    """

    def __init__(
        self,
        puller: Puller,
        pulled: ReadAhead[Iterable[object], Pulled],
        config: Config,
        *,
        openings: Openings,
        engine: BoxReader,
        meters: Meters,
    ) -> None:
        self._puller, self._pulled = puller, pulled
        self._config = config
        self._openings = openings
        self._engine = engine
        self._meters = meters
        self.is_awaited: Callable[[], bool] = lambda: False
        self.doing = ""
        self._items: list[Numbered] = []
        self._failures: list[Failure] = []
        self._num_taken = self._num_seen = 0
        self._native: dict[str, tuple[DType, str]] = {}
        self._reader: CropReader | None = None

    @property
    def num_waiting(self) -> int:
        """Samples of the batch that is being made up."""
        return len(self._items)

    def wake(self) -> None:
        """Look again whether a consumer waits."""
        self._pulled.wake()

    def close(self) -> None:
        """Wait for nothing any more: the steps end."""
        self._openings.close()
        self._pulled.close()

    def __iter__(self) -> Iterator[Work | Drained]:
        """Yield the steps until closed, each once the next one is planned too, if that is there already."""
        coming: Work | None = None
        while (step := coming or self._awaited_step()) is not None:
            coming = self._step_that_is_there() if isinstance(step, Work) else None
            yield step

    def _awaited_step(self) -> Work | Drained | None:
        while not self._is_whole:
            if not self._take(until=self._is_over):
                return None if self._pulled.closed else self._rest()
        return self._work()

    def _step_that_is_there(self) -> Work | None:
        """A batch whose samples are all there and whose arrays are open: the one before it need not wait for it."""
        while not self._is_whole:
            if not self._take(until=lambda: True):
                return None
        crops = (crops_of(each.sample, self._config) for each in self._items if each.sample is not None)
        is_open = all(self._openings.is_open(crop.uri) for of_sample in crops for crop in of_sample.values())
        return self._work() if is_open else None

    @property
    def _is_whole(self) -> bool:
        return len(self._items) >= self._config.samples_per_batch

    def _is_over(self) -> bool:
        """Whether a consumer waits and nothing follows: in this order, what he pushed himself is known then."""
        if not self.is_awaited():
            return False
        self._num_seen = self._puller.num_pushed
        return self._num_seen == self._puller.num_ended and self._num_taken == self._puller.num_pulled

    def _take(self, *, until: Callable[[], bool]) -> bool:
        """Take what was pulled next; False if there is nothing until then."""
        found = self._pulled.take(until=until)
        if isinstance(found, Numbered):
            self._items.append(found)
        elif isinstance(found, Failure):
            self._failures.append(found)
        self._num_taken += isinstance(found, Numbered | Failure)
        return found is not None

    def _rest(self) -> Work | Drained:
        """What goes though it is no whole batch. With `drop_last` errors alone go, samples stay for later pushes."""
        if self._config.drop_last and self._failures:
            failures, self._failures = tuple(self._failures), []
            return Work(failures=failures)
        if self._failures or (self._items and not self._config.drop_last):
            return self._work()
        return Drained(self._num_seen)

    def _work(self) -> Work:
        items, self._items = tuple(self._items), []
        failures, self._failures = tuple(self._failures), []
        self.doing = "the next batch is being planned (its arrays are being opened)"
        try:
            with self._meters.time("plan"):
                work = self._planned(items, failures)
            if work.plan is not None and work.reader is not None:
                work.reader.hint([work.plan])
        except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
            return Work(failures=(*failures, Failure(error, len(items))))
        finally:
            self.doing = ""
        return work

    def _planned(self, items: tuple[Numbered, ...], failures: tuple[Failure, ...]) -> Work:
        resolved: dict[int, Mapping[str, ArrayBoxes]] = {}
        failed: dict[int, DamacyError] = {}
        for row, item in enumerate(items):
            try:
                resolved[row] = self._resolved(item)
            except DamacyError as error:
                failed[row] = error
        if not resolved:
            return Work(items=items, failed=tuple(failed.values()), failures=failures)
        reader = self._reader = self._reader or self._make_reader()
        ids = np.array([item.number for item in items], dtype=np.int64)
        plan = reader.plan(grouped(resolved, list(reader.fields)), ids=ids, failed=failed)
        return Work(items=items, reader=reader, plan=plan, failures=failures)

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
