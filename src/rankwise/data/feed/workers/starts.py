"""`PassStarts`: where each pass of a loader begins, agreed on by the workers of a `DataLoader` that share it."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.contract import OrderState
from rankwise.data.feed.workers.forkserver import leave_with_rank

__all__ = ["PassStarts", "Standing", "order_code"]

_STANDING = struct.Struct("=4q")  # what the process that owns the loader said last
_BEGUN = struct.Struct("=3q")  # the pass that was begun last: the standing that it began from, its epoch and position
_COUNTS = struct.Struct("=2q")  # passes of workers so far, damaged samples that they left out
_PASS = struct.Struct("=8q")  # who begins it: salt, number, count and first of its workers; then where
_MOST_PASSES = 64  # that are remembered; a worker is late by one at most
_AT_BEGUN = _STANDING.size
_AT_COUNTS = _AT_BEGUN + _BEGUN.size
_AT_PASSES = _AT_COUNTS + _COUNTS.size
_NUM_BYTES = _AT_PASSES + _MOST_PASSES * _PASS.size


def order_code(recipe: str) -> int:
    """Return a number that tells orders apart."""
    return zlib.crc32(recipe.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a loader stands.

    Attributes:
        serial: how often this was said.
        epoch: of the next step.
        position: samples of this epoch that lie behind.
        order: `order_code` of the order.
    """

    serial: int
    epoch: int
    position: int
    order: int


class PassStarts:
    """A few kilobytes that a process shares with the workers that are forked or spawned from it.

    The process says where the loader stands. A pass begins there; if nothing was said since a pass began, at the start
    of the epoch after that of the last one. Whichever worker comes first to a pass decides this and notes it for the
    others: what is said while they are still on their way is about steps of this very pass. Locks are those of the
    kernel, which go with their process.

    Only the process that made the memory says something in it. Another that does so makes memory of its own, so that
    ranks which got one loader from a common parent do not tell each other; so has what is copied or pickled for
    another purpose than starting a process.

    Most loaders never meet a DataLoader, and a word to workers costs more than all else that a step says. So nothing is
    said before somebody could hear it: a pass was begun, or this process forks or starts another with a copy of this.

    Args:
        epoch: where the loader stands.
        position: likewise.
        order: `order_code` of its order.

    Attributes:
        is_quiet: whether nobody can hear what is said, nor begin a pass.
        unsaid: while it is quiet, where the loader stands and the code of its order; None = as was said last.
    """

    def __init__(self, epoch: int, position: int, order: int) -> None:
        self._said = Standing(serial=0, epoch=epoch, position=position, order=order)
        self.is_quiet = True
        self.unsaid: tuple[OrderState, int] | None = None
        self._own()
        _QUIET.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if get_spawning_popen() is None:
            said = (self._said, self._said.order) if self.unsaid is None else self.unsaid
            return PassStarts, (said[0].epoch, said[0].position, said[1])
        self.speak()
        return _attach, (self._owner, DupFd(self._file), self._said)

    def speak(self) -> None:
        """Say from now on at once what is said, beginning with what was not."""
        self.is_quiet = False
        unsaid, self.unsaid = self.unsaid, None
        if unsaid is not None:
            state, order = unsaid
            self.say(state.epoch, state.position, order)

    def say(self, epoch: int, position: int, order: int) -> None:
        """Tell where the loader stands from now on, with or without a change."""
        if self._owner != os.getpid():
            self._own()
        self._said = Standing(serial=self._said.serial + 1, epoch=epoch, position=position, order=order)
        with self._locked():
            self._write_said()

    def begun(self) -> tuple[int, int] | None:
        """Return epoch and position where the last pass began, if nothing was said since; else None."""
        if self._owner != os.getpid() or _BEGUN.unpack_from(self._words, _AT_BEGUN)[0] != self._said.serial:
            return None
        with self._locked():
            _, epoch, position = _BEGUN.unpack_from(self._words, _AT_BEGUN)
        return epoch, position

    def begin(self, worker: LoaderWorker | None, *, repeats: bool) -> Standing:
        """Begin a pass; return where. Every worker calls it once for each of its passes.

        Args:
            worker: of a DataLoader, None in the process that says where the loader stands.
            repeats: whether passes are the same in every epoch, and meant so.
        """
        self.speak()
        if worker is None:
            if self._owner != os.getpid():
                self._own()
            with self._locked():
                return self._decided(self._said, repeats=repeats)
        leave_with_rank()
        first = self._count_pass() == 1
        with self._locked():
            found = self._found(worker)
            if found is None:
                # a worker that was started for this pass has what was said before it was started
                said = self._said if first else self._read_said()
                found = self._decided(said, repeats=repeats)
                self._note(worker, found)
        return found

    def count_damaged(self, limit: int) -> int | None:
        """Count a sample that a worker leaves out; return how many it are by now, None if the limit was reached."""
        with self._locked():
            passes, damaged = _COUNTS.unpack_from(self._words, _AT_COUNTS)
            if damaged >= limit:
                return None
            _COUNTS.pack_into(self._words, _AT_COUNTS, passes, damaged + 1)
        return int(damaged + 1)

    def _own(self) -> None:
        """Make memory of this process."""
        self._hold(os.getpid(), _new_file())
        _BEGUN.pack_into(self._words, _AT_BEGUN, -1, 0, 0)
        self._write_said()

    def _hold(self, owner: int, file: int) -> None:
        self._owner, self._file = owner, file
        self._words = mmap.mmap(file, _NUM_BYTES)
        self._counted_by, self._num_passes = -1, 0
        weakref.finalize(self, os.close, file).atexit = False

    def _write_said(self) -> None:
        said = self._said
        _STANDING.pack_into(self._words, 0, said.serial, said.epoch, said.position, said.order)

    def _read_said(self) -> Standing:
        serial, epoch, position, order = _STANDING.unpack_from(self._words)
        return Standing(serial=serial, epoch=epoch, position=position, order=order)

    def _count_pass(self) -> int:
        """How many passes this worker has begun, this one included."""
        if self._counted_by != os.getpid():
            self._counted_by, self._num_passes = os.getpid(), 0
        self._num_passes += 1
        return self._num_passes

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _decided(self, said: Standing, *, repeats: bool) -> Standing:
        serial, epoch, position = _BEGUN.unpack_from(self._words, _AT_BEGUN)
        if serial != said.serial or repeats:
            epoch, position = said.epoch, said.position
        else:
            epoch, position = epoch + 1, 0
        if said.serial >= serial:  # else who begins here was started before the last pass began
            _BEGUN.pack_into(self._words, _AT_BEGUN, said.serial, epoch, position)
        return Standing(serial=said.serial, epoch=epoch, position=position, order=said.order)

    def _found(self, worker: LoaderWorker) -> Standing | None:
        """What another worker of the same pass has decided."""
        count, _ = _COUNTS.unpack_from(self._words, _AT_COUNTS)
        for at in range(count - 1, max(-1, count - 1 - _MOST_PASSES), -1):
            *who, first, serial, epoch, position, order = _PASS.unpack_from(self._words, _place(at))
            # as many workers of an earlier DataLoader, whose seed may have been the same, were started before all these
            if who == self._who(worker) and abs(first - worker.first) < worker.count:
                return Standing(serial=serial, epoch=epoch, position=position, order=order)
        return None

    def _who(self, worker: LoaderWorker) -> list[int]:
        return [worker.salt, self._num_passes, worker.count]

    def _note(self, worker: LoaderWorker, start: Standing) -> None:
        count, damaged = _COUNTS.unpack_from(self._words, _AT_COUNTS)
        values = (start.serial, start.epoch, start.position, start.order)
        _PASS.pack_into(self._words, _place(count), *self._who(worker), worker.first, *values)
        _COUNTS.pack_into(self._words, _AT_COUNTS, count + 1, damaged)


def _attach(owner: int, file: Any, said: Standing) -> PassStarts:
    made = object.__new__(PassStarts)
    made._said, made.is_quiet, made.unsaid = said, False, None
    made._hold(owner, file.detach())
    return made


_QUIET: weakref.WeakSet[PassStarts] = weakref.WeakSet()


def _speak_before_fork() -> None:
    for starts in [each for each in _QUIET if each.is_quiet]:
        starts.speak()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_speak_before_fork)


def _place(number: int) -> int:
    return _AT_PASSES + number % _MOST_PASSES * _PASS.size


def _new_file() -> int:
    """A file without a name, of zeros."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("rankwise-passes")
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.truncate(file, _NUM_BYTES)
    return file
