"""`EpochMark`: the epoch that was chosen last, told to processes that were started before it was chosen."""

from __future__ import annotations

import os
from typing import Any

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
