"""The schedule of a stream: pushed iterables, samples pulled from them, and their batches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Final

import numpy as np

from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import DamacyError, DtypeMismatch
from rankwise.data.crops.fields import CropField
from rankwise.data.crops.plan import CropPlan, plan_crops
from rankwise.data.crops.sample import Dtype, Sample, parse_dtype
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.resolver import ArrayBoxes, Openings, check_sample, crops_of, grouped, resolve
from rankwise.data.feed.prefetch import PrefetchQueue, ReadAhead
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.reader import BoxReader

_LOG = logging.getLogger("rankwise.crops")


@dataclass(frozen=True, slots=True)
class Numbered:
    """A sample and its number in the stream; or the object pushed in its place, with the error."""

    number: int
    sample: Sample | None
    error: DamacyError | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to raise, and its number of samples: 0 = the iterable's error. Without an error they are skipped."""

    error: BaseException | None
    num_samples: int


END: Final = Failure(None, 0)  # of an iterable, or of all that was pushed


class Puller:
    """Pulls samples from pushed iterables; a `ReadAhead` limits how far it runs ahead.

    An iterable is user code: it may wait for any time, and nothing can wake it. If it raises, the error takes its
    position in the stream and ends that iterable.

    Attributes:
        is_awaited: whether a consumer waits; set by the object that runs this.
        num_pushed: number of pushed iterables.
        num_ended: number of those that have ended.
        num_samples: number of pulled samples.
        num_errors: number of errors of iterables.
        is_away: whether user code is running.
    """

    is_awaited: Callable[[], bool]

    def __init__(self, config: Config, openings: Openings, meters: Meters) -> None:
        self._config, self._openings, self._meters = config, openings, meters
        self._pushes: PrefetchQueue[Iterable[Any]] = PrefetchQueue(sys.maxsize)
        self.num_pushed = self.num_ended = self.num_samples = self.num_errors = 0
        self.is_away = self._closed = False

    def push(self, samples: Iterable[Any]) -> None:
        """Add an iterable. Only one thread may call it at a time."""
        self.num_pushed += 1
        self._pushes.put(samples)

    @property
    def pushes(self) -> Iterator[Iterable[Any]]:
        """The pushed iterables, in order; waits for more until it is closed."""
        return iter(self._pushes.take, None)

    def wake(self) -> None:
        """Do nothing: nothing here depends on a waiting consumer."""

    def close(self) -> None:
        """Stop pulling."""
        self._closed = True
        self._pushes.close()

    def read(
        self, steps: Iterable[Iterable[Any]], is_asked: Callable[[], bool]
    ) -> Generator[Numbered | Failure, None, None]:
        """Yield the samples of iterables, and after each iterable a failure, even if it has no error."""
        del is_asked  # what is pushed is read
        for pushed in steps:
            iterator = found = self._call(iter, pushed)
            try:
                while not isinstance(found, Failure):
                    found = self._call(self._next, iterator)
                    if isinstance(found, Numbered):
                        yield found
            finally:
                _close(iterator)
            self.num_errors += found.error is not None
            self.num_ended += 1  # after the samples: code that sees this also sees all samples
            yield found

    def _call(self, user: Callable[[Any], Any], of: Any) -> Any:
        """Call user code. Return its error instead of raising, so that a kept error keeps no frame of `read`."""
        # Set before and reset after: `close` first sets its mark, then checks this flag. Code that sees the mark ends.
        self.is_away = True
        try:
            found = END if self._closed else user(of)
        except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
            found = Failure(error, 0)
        self.is_away = False
        return END if self._closed else found

    def _next(self, iterator: Iterator[Any]) -> Numbered | Failure:
        with self._meters.time("pull"):
            pulled = next(iterator, END)
        if pulled is END:
            return END
        sample: Any = pulled
        number, found = self.num_samples, None
        try:
            check_sample(sample, self._config, number)
            for crop in crops_of(sample, self._config).values():
                self._openings.start(crop.uri)
        except DamacyError as error:
            found = Numbered(number, sample if isinstance(sample, Sample) else None, error)
        self.num_samples += 1
        return found or Numbered(number, sample)


def _close(iterator: Any) -> None:
    """Close a generator that was not pulled to its end, so that its finally blocks run."""
    if isinstance(iterator, GeneratorType):
        try:
            iterator.close()
        except Exception:  # noqa: BLE001  (nobody pops any more)
            _LOG.warning("a pushed generator raised an error while it was closed", exc_info=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One batch to read.

    Attributes:
        items: its samples.
        plan: its plan; None if no sample can be read.
        failed: errors of samples that cannot be read, in order, if there is no plan.
        failures: other errors to raise before it.
    """

    items: tuple[Numbered, ...] = ()
    plan: CropPlan | None = None
    failed: tuple[DamacyError, ...] = ()
    failures: tuple[Failure, ...] = ()


class Planner:
    """Makes batches of samples and plans them, for a `ReadAhead`.

    A batch is sent once it is complete. An incomplete one, or the end of all that was pushed, is sent when no sample
    follows, no batch is being read and a consumer waits.

    Attributes:
        is_awaited: whether the reader waits for a plan; set by the object that runs this.
        puller: pulls the samples.
        pulled: runs it ahead.
        doing: what it waits for, for messages; empty while it waits for samples.
    """

    is_awaited: Callable[[], bool]

    def __init__(
        self, config: Config, openings: Openings, engine: BoxReader, meters: Meters, is_read_awaited: Callable[[], bool]
    ) -> None:
        puller = self.puller = Puller(config, openings, meters)
        # the puller has one more in hand than those that lie ready
        self.pulled: ReadAhead[Iterable[Any], Numbered | Failure] = ReadAhead(
            puller, puller.pushes, depth=max(1, config.lookahead - 1), is_away=lambda: puller.is_away
        )
        self._config = config
        self._openings = openings
        self._engine = engine
        self._meters = meters
        self._is_read_awaited = is_read_awaited  # whether a consumer waits for a batch
        self.doing = ""
        self._items: list[Numbered] = []
        self._failures: list[Failure] = []
        self._num_ended = 0  # iterables all of whose samples are here
        self._fields = config.all_fields
        native = (name for name, field in self._fields.items() if parse_dtype(field.dtype) is Dtype.NATIVE)
        self._native: dict[str, ArrayMeta | None] = dict.fromkeys(native)  # for each, the first array decides
        self._crop_fields: dict[str, CropField] = {}  # known with the first batch

    @property
    def num_waiting(self) -> int:
        """Number of samples in the incomplete batch."""
        return len(self._items)

    def wake(self) -> None:
        """Check again whether a consumer waits."""
        self.pulled.wake()

    def close(self) -> None:
        """Stop all waits: planning ends."""
        self._openings.close()
        self.pulled.close(waits=False)

    @property
    def samples(self) -> Iterator[Numbered | Failure | None]:
        """The pulled samples; None if no sample follows and a consumer waits. Ends when closed."""
        while (found := self.pulled.take(until=self._is_over)) is not None or not self.pulled.closed:
            yield found

    def _is_over(self) -> bool:
        """Whether reader and consumer wait, and no sample follows."""
        awaited = self.is_awaited() and self._is_read_awaited()
        # `num_pushed` is read after that, so that it includes what the waiting consumer itself pushed
        return awaited and self._num_ended == self.puller.num_pushed

    def read(
        self, steps: Iterable[Numbered | Failure | None], is_asked: Callable[[], bool]
    ) -> Generator[Work, None, None]:
        """Yield planned batches of samples."""
        del is_asked  # what is pushed is read
        for found in steps:
            if found is None:
                yield self._rest()
                continue
            if isinstance(found, Numbered):
                self._items.append(found)
            else:
                self._num_ended += 1
                self._failures += [found] * (found is not END)
            if len(self._items) == self._config.samples_per_batch:
                yield self._work()

    def _rest(self) -> Work:
        """Return the incomplete batch. With `drop_last` return errors only; samples stay for later pushes."""
        if self._items and not self._config.drop_last:
            return self._work()
        failures, self._failures = tuple(self._failures), []
        return Work(failures=failures or (END,))

    def _work(self) -> Work:
        items, self._items = tuple(self._items), []
        failures, self._failures = tuple(self._failures), []
        self.doing = "the next batch is being planned (its arrays are being opened)"
        try:
            with self._meters.time("plan"):
                work = self._planned(items, failures)
            if work.plan is not None:
                work.plan.hint()
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
        if not self._crop_fields:
            native = {name: first.dtype for name, first in self._native.items() if first is not None}
            self._crop_fields = {name: field.crop_field(native.get(name)) for name, field in self._fields.items()}
        ids = np.array([item.number for item in items], dtype=np.int64)
        boxes = {name: grouped(resolved, name) for name in self._fields}
        plan = plan_crops(self._crop_fields, boxes, self._engine, ids=ids, failed=failed)
        return Work(items=items, plan=plan, failures=failures)

    def _resolved(self, item: Numbered) -> dict[str, ArrayBoxes]:
        if item.error is not None:
            raise item.error
        assert item.sample is not None  # only with an error
        boxes = resolve(item.sample, item.number, self._config, self._openings)
        for name, known in self._native.items():
            array = boxes[name][0]
            first = self._native[name] = known or array
            if first.dtype != array.dtype:
                raise DtypeMismatch(
                    f"sample {item.number} cannot be read: field {name!r} has the native dtype, which is {first.dtype} "
                    f"since {first.place}; {array.place} holds {array.dtype}: set the dtype of the batches",
                    uri=array.place,
                    sample=item.number,
                )
        return boxes
