"""Ranges of rows that a pass reads, and marks of what was read."""

from __future__ import annotations

import os
from typing import Any

from rankwise.data.contract import JSON
from rankwise.errors import ConfigError

__all__ = ["check_mask", "circle", "mask_bounds", "mask_settings"]


def check_mask(mask: slice) -> slice:
    """Return a mask with a whole number as its start.

    Raises:
        TypeError: it is no slice.
        ConfigError: it is no contiguous range, begins below 0, or is empty.
    """
    if not isinstance(mask, slice):
        raise TypeError(f"mask wants a slice of rows, such as slice(0, 1000); got {type(mask).__name__}")
    start, stop = mask.start or 0, mask.stop
    if mask.step not in (None, 1):
        raise ConfigError(f"mask.step must be 1: a mask is one contiguous range; got {mask}")
    if start < 0 or (stop is not None and stop < 0):
        raise ConfigError(f"mask.start and mask.stop must be >= 0, counted from the first row; got {mask}")
    if stop is not None and start >= stop:
        raise ConfigError(f"mask.start must be < mask.stop, or no row is left; got {mask}")
    return slice(start, stop)


def mask_bounds(mask: slice, n_obs: int) -> tuple[int, int]:
    """Return the first row of a mask, and the one after its last.

    Raises:
        ConfigError: there are not that many rows.
    """
    checked = check_mask(mask)
    if n_obs == 0:
        raise ConfigError("the loader has no rows: add data first, with use_collection, add_adata or add_dataset")
    start = int(checked.start)
    stop = n_obs if checked.stop is None else int(checked.stop)
    if stop > n_obs:
        raise ConfigError(
            f"mask.stop ({stop}) exceeds the {n_obs} rows of the loader: make the mask smaller, or add the data first"
        )
    if start >= stop:
        raise ConfigError(f"mask.start ({start}) leaves no row: the loader has {n_obs} rows; move the mask")
    return start, stop


def mask_settings(mask: slice) -> list[JSON]:
    """Return the first row of a mask, and the one after its last or None, as JSON."""
    return [mask.start or 0, mask.stop]


def circle(first: int, length: int, start: int, stop: int) -> list[slice]:
    """Return a run of rows that goes on at `start` when it reaches `stop`, around as often as needed.

    Args:
        first: first row of the run, in [start, stop).
        length: rows of the run.
        start: first row of the range.
        stop: row after the last of the range.
    """
    runs = []
    while length > 0:
        taken = min(length, stop - first)
        runs.append(slice(first, first + taken))
        first, length = start, length - taken
    return runs


__all__ = ["EpochMark"]

_CHOICES, _EPOCH, _FIRST_SALT, _PASSES = range(4)
_UNUSED = -1


class EpochMark:
    """Four words of memory that this process shares with those that are forked or spawned from it.

    Workers of a `DataLoader` that stay from epoch to epoch hold copies of the loader: this is how `set_epoch` reaches
    them. Only the process that made the memory chooses epochs in it; another that chooses one makes memory of its own,
    so that ranks which got one loader from a common parent do not tell each other. A copy, or what is pickled for
    another purpose than starting a process, has memory of its own too.

    Args:
        choices: how often an epoch was chosen.
        epoch: the one that was chosen last.

    Raises:
        OSError: there is no memory to share.
    """

    def __init__(self, choices: int = 0, epoch: int = 0) -> None:
        self._allocate(choices, epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is None:
            return EpochMark, self.read()
        return _attach, (self._owner, self._words)

    def read(self) -> tuple[int, int]:
        """Return how often an epoch was chosen, and the last."""
        return self._words[_CHOICES], self._words[_EPOCH]

    def choose(self, epoch: int) -> int:
        """Tell an epoch; return how often one was chosen by now."""
        if self._owner != os.getpid():
            self._allocate(*self.read())
        self._words[_FIRST_SALT] = _UNUSED
        self._words[_EPOCH] = epoch
        self._words[_CHOICES] += 1
        return int(self._words[_CHOICES])

    @property
    def num_passes(self) -> int:
        """Changes whenever a worker begins a pass; a number without meaning otherwise, for they do not wait in line."""
        return int(self._words[_PASSES])

    def note_pass(self) -> None:
        """Tell that a worker begins a pass."""
        self._words[_PASSES] += 1

    def is_first_use(self, salt: int) -> bool:
        """Whether the workers with this salt are the first since the epoch was chosen; all of them get one answer.

        Args:
            salt: equal in the workers of one epoch of a DataLoader.
        """
        if self._words[_FIRST_SALT] == _UNUSED:
            self._words[_FIRST_SALT] = salt
        return bool(self._words[_FIRST_SALT] == salt)

    def _allocate(self, choices: int, epoch: int) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._owner = os.getpid()
        self._words: Any = RawArray("q", [choices, epoch, _UNUSED, 0])


def _attach(owner: int, words: Any) -> EpochMark:
    mark = object.__new__(EpochMark)
    mark._owner, mark._words = owner, words
    return mark
