"""How many damaged samples a stream may leave out, and what happens with the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from rankwise.data.crops.exceptions import DamacyError, DecodeError

__all__ = ["SkipBudget"]

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
