"""The first thread of a stream: pulls samples out of what was pushed, and has their arrays opened."""

from __future__ import annotations

from collections.abc import Iterable
from types import GeneratorType
from typing import Any

from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import DamacyError
from rankwise.data.crops.sample import Sample
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.flow import Flow
from rankwise.data.crops.stream.opening import Openings
from rankwise.data.crops.stream.resolving import check_sample, crops_of
from rankwise.data.crops.stream.work import Numbered

__all__ = ["Puller"]


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
