"""How many damaged samples a rank may leave out, and which ones it did."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from rankwise.data.contract import BoolArray, ReadReport, Share
from rankwise.errors import ConfigError, SampleError

__all__ = ["OnBadSample", "SkipBudget"]

OnBadSample: TypeAlias = Literal["raise"] | int
_SAID = 3
_LOG = logging.getLogger("rankwise.data")


class SkipBudget:
    """Decides about samples that could not be read; counts those that are left out.

    Only damaged content is ever skipped: trouble with the storage would lose good samples. A sample that is met again
    in the same epoch, as after going back to the last step marked done, counts once.

    Args:
        on_bad_sample: "raise", or the most samples that may be left out, over all epochs.

    Raises:
        ConfigError: it is something else.
    """

    def __init__(self, on_bad_sample: OnBadSample) -> None:
        number = isinstance(on_bad_sample, int) and not isinstance(on_bad_sample, bool)
        if not (on_bad_sample == "raise" or (number and int(on_bad_sample) >= 0)):
            raise ConfigError(
                f'on_bad_sample is "raise" or how many damaged samples may be left out, got {on_bad_sample!r}'
            )
        self._limit = int(on_bad_sample) if number else 0
        self._skipped: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._grant: Callable[[int], int | None] = self._next

    def __reduce__(self) -> tuple[type[SkipBudget], tuple[int]]:
        return SkipBudget, (self._limit,)

    def shared(self, grant: Callable[[int], int | None]) -> SkipBudget:
        """Return a budget that several processes draw on.

        Args:
            grant: from the limit to the number of the next sample that is left out by any of them; None = no more.
        """
        made = SkipBudget(self._limit)
        made._grant = grant
        return made

    @property
    def may_skip(self) -> bool:
        """Whether any sample may be left out."""
        return self._limit > 0

    @property
    def num_skipped(self) -> int:
        """Samples that were left out so far."""
        return len(self._skipped)

    def kept(self, report: ReadReport, share: Share) -> BoolArray | None:
        """Return which samples of a share are kept, bool[B]; None = all.

        Raises:
            SampleError: a sample may not be skipped: its content is not what is wrong, or the budget is used up.
        """
        if not report.errors:
            return None
        for error in report.errors:
            self._admit(error, share)
        kept: BoolArray = np.asarray(report.valid, dtype=np.bool_)
        return kept

    def _admit(self, error: SampleError, share: Share) -> None:
        if not error.damage or not self.may_skip:
            raise error
        with self._lock:
            # one that does not say which sample it is about counts by itself
            key = (share.step.epoch, error.sample if error.sample >= 0 else -1 - len(self._skipped))
            if key in self._skipped:
                return
            number = self._grant(self._limit)
            if number is None:
                error.add_note(
                    f"rank {share.rank} has left out {self._limit} damaged samples before, as many as "
                    f"on_bad_sample={self._limit} allows: mend the store, or allow more"
                )
                raise error
            self._skipped.add(key)
        if number <= _SAID:
            more = "; further ones are counted without a word" if number == _SAID else ""
            _LOG.warning(
                "rank %d leaves out a damaged sample (%d of at most %d)%s: %s",
                share.rank, number, self._limit, more, error,
            )  # fmt: skip

    def _next(self, limit: int) -> int | None:
        return len(self._skipped) + 1 if len(self._skipped) < limit else None

    def say_total(self, rank: int) -> None:
        """Say how many samples this rank left out, if any."""
        if self._skipped:
            _LOG.warning("rank %d left out %d damaged samples in all", rank, len(self._skipped))
