"""Samples out of what the user pushed: pulled in a thread of their own, since an iterable may take its time."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import GeneratorType
from typing import Any, Final, TypeAlias

from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import DamacyError
from rankwise.data.crops.sample import Sample
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.opener import Openings
from rankwise.data.crops.stream.resolver import check_sample, crops_of
from rankwise.data.feed.prefetch import Conveyor

__all__ = ["Failure", "Numbered", "Pulled", "Puller"]

_LOG = logging.getLogger("rankwise.crops")


@dataclass(frozen=True, slots=True)
class Numbered:
    """A sample and its number in the stream; or what was pushed in its place, and why it is none."""

    number: int
    sample: Sample | None
    error: DamacyError | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to raise, and how many samples it stands for: 0 = it is the source's. No error: they are left out."""

    error: BaseException | None
    num_samples: int


class _Mark(Enum):
    END = "an iterable has ended"


_END: Final = _Mark.END
Pulled: TypeAlias = Numbered | Failure | _Mark


class Puller:
    """Reads samples out of pushed iterables; a `ReadAhead` bounds how far it is ahead.

    An iterable is code of the user's: it may wait as long as it likes, and nothing can wake it then. What it raises
    comes in its place, and ends that iterable.

    Args:
        config: what samples must fit.
        openings: opens their arrays.
        meters: times the iterables.

    Attributes:
        num_pushed: iterables that were pushed.
        num_ended: of these, those that have ended.
        num_samples: samples that were pulled.
        num_errors: errors of iterables.
        is_away: whether it is in the user's code.
    """

    def __init__(self, config: Config, openings: Openings, meters: Meters) -> None:
        self._config, self._openings, self._meters = config, openings, meters
        self._pushes: Conveyor[Iterable[Any]] = Conveyor(sys.maxsize)
        self.num_pushed = self.num_ended = self.num_samples = self.num_errors = 0
        self.is_away = self._closed = False
        self.is_awaited: Callable[[], bool] = lambda: True

    @property
    def num_pulled(self) -> int:
        """Samples and errors."""
        return self.num_samples + self.num_errors

    def push(self, samples: Iterable[Any]) -> None:
        """Add an iterable. One thread at a time."""
        self.num_pushed += 1
        self._pushes.put(samples)

    @property
    def pushes(self) -> Iterator[Iterable[Any]]:
        """What was pushed, in order; waits for more until it is closed."""
        return iter(self._pushes.take, None)

    def wake(self) -> None:
        """Nothing here depends on whether somebody waits."""

    def close(self) -> None:
        """Pull no further."""
        self._closed = True
        self._pushes.close()

    def read(
        self,
        steps: Iterable[Iterable[Any]],
        is_asked: Callable[[], bool] = lambda: True,  # noqa: ARG002
    ) -> Generator[Pulled, None, None]:
        """Yield the samples of iterables, and a mark or an error at the end of each."""
        for pushed in steps:
            iterator = found = self._call(iter, pushed)
            try:
                while not isinstance(found, _Mark | Failure):
                    found = self._call(self._next, iterator)
                    if not isinstance(found, _Mark | Failure):
                        yield self._numbered(found)
            finally:
                _close(iterator)
            self.num_errors += isinstance(found, Failure)
            self.num_ended += 1  # after the samples: who sees it knows of all of them
            yield found

    def _call(self, user: Callable[[Any], Any], of: Any) -> Any:
        """Call the user's code. What it raises is returned: who keeps the error keeps no frame of `read`."""
        # Before and after: who closes says so and then looks whether this is away. What finds it closed ends by itself.
        self.is_away = True
        try:
            found = _END if self._closed else user(of)
        except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
            found = Failure(error, 0)
        self.is_away = False
        return _END if self._closed else found

    def _next(self, iterator: Iterator[Any]) -> Any:
        with self._meters.time("pull"):
            return next(iterator, _END)

    def _numbered(self, sample: Any) -> Numbered:
        number = self.num_samples
        try:
            check_sample(sample, self._config, number)
            for crop in crops_of(sample, self._config).values():
                self._openings.start(crop.uri)
        except DamacyError as error:
            return Numbered(number, sample if isinstance(sample, Sample) else None, error)
        finally:
            self.num_samples += 1
        return Numbered(number, sample)


def _close(iterator: Any) -> None:
    """Let a generator that was not pulled to its end run its finally blocks."""
    if isinstance(iterator, GeneratorType):
        try:
            iterator.close()
        except Exception:  # noqa: BLE001  (nobody pops any more)
            _LOG.warning("a pushed generator raised while it was closed", exc_info=True)
