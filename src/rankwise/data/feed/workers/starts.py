"""`PassStarts`: where each pass of a loader begins, shared memory by which the workers of a `DataLoader` agree."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.feed.workers.forkserver import leave_with_rank

_POSITION = struct.Struct("=4q")  # the position last published by the process that owns the loader
_BEGUN = struct.Struct("=3q")  # the last pass begun: the serial of the position it began from, its epoch and position
_COUNTS = struct.Struct("=2q")  # passes of workers so far, damaged samples that they skipped
_PASS = struct.Struct("=8q")  # who begins it: salt, number, worker count, first worker; then where
_MOST_PASSES = 64  # passes that are remembered; a worker is at most one pass late
_AT_BEGUN = _POSITION.size
_AT_COUNTS = _AT_BEGUN + _BEGUN.size
_AT_PASSES = _AT_COUNTS + _COUNTS.size
_NUM_BYTES = _AT_PASSES + _MOST_PASSES * _PASS.size


class PassPosition(NamedTuple):
    """A position of a loader, as published or as where a pass begins.

    Attributes:
        serial: how often a position was published.
        epoch: of the next step.
        position: samples of this epoch that are done.
        order: a number that identifies the order and the speeds.
    """

    serial: int
    epoch: int
    position: int
    order: int


class PassStarts:
    """A few kilobytes of memory that a process shares with the workers that it forks or spawns.

    The process publishes the position of the loader. A pass begins there; if nothing was published since the last
    pass began, it begins at the start of the following epoch. The first worker to reach a pass decides and records this
    for the others: positions published before they arrive belong to steps of this very pass. Locks are kernel locks,
    which are released when their process ends.

    Only the process that made the memory publishes in it. Another process that publishes makes memory of its own, so
    that ranks which inherited one loader from a common parent do not affect each other. A copy, or a pickle that does
    not start a process, also gets memory of its own.

    Most loaders never meet a DataLoader, and publishing would be the most expensive part of marking a step done. So
    nothing is published before others can see it: before the first pass, a fork, or a process start with a copy.

    Args:
        epoch: where the loader stands.
        position: likewise.
        order: a number that identifies its order and speeds.

    Attributes:
        is_private: whether no other process can see the memory, and no pass has begun.
        unpublished: while private, what to publish later: epoch, position, order; None = as last published.
    """

    def __init__(self, epoch: int, position: int, order: int) -> None:
        self._published = PassPosition(0, epoch, position, order)
        self.is_private = True
        self.unpublished: tuple[int, int, int] | None = None
        self._own()
        _PRIVATE.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if get_spawning_popen() is None:
            return PassStarts, self.unpublished or self._published[1:]
        self.publish_from_now_on()
        return _attach, (self._owner, DupFd(self._file), self._published)

    def publish_from_now_on(self) -> None:
        """Publish every position from now on, beginning with the one that was held back."""
        self.is_private = False
        unpublished, self.unpublished = self.unpublished, None
        if unpublished is not None:
            self.publish(*unpublished)

    def publish(self, epoch: int, position: int, order: int) -> None:
        """Publish where the loader stands, changed or not; while private, only note it."""
        if self.is_private:
            self.unpublished = epoch, position, order
            if self.is_private:  # check again: another thread may have forked in between
                return
            self.unpublished = None
        if self._owner != os.getpid():
            self._own()
        self._published = PassPosition(self._published.serial + 1, epoch, position, order)
        with self._locked():
            self._write_published()

    def begun(self) -> tuple[int, int] | None:
        """Return epoch and position where the last pass began, if nothing was published since; else None."""
        if self.is_private or self._owner != os.getpid():
            return None
        if _BEGUN.unpack_from(self._words, _AT_BEGUN)[0] != self._published.serial:
            return None
        with self._locked():
            _, epoch, position = _BEGUN.unpack_from(self._words, _AT_BEGUN)
        return epoch, position

    def begin(self, worker: LoaderWorker | None, *, repeats: bool) -> PassPosition:
        """Begin a pass; return where it begins. Every worker calls it once for each of its passes.

        Args:
            worker: the DataLoader worker; None in the process that publishes the position.
            repeats: whether all epochs are the same by design.
        """
        self.publish_from_now_on()
        if worker is None:
            if self._owner != os.getpid():
                self._own()
            with self._locked():
                return self._decided(self._published, repeats=repeats)
        leave_with_rank()
        first = self._count_pass() == 1
        with self._locked():
            found = self._found(worker)
            if found is None:
                # a worker started for this pass has the position that was published before it was started
                published = self._published if first else PassPosition(*_POSITION.unpack_from(self._words))
                found = self._decided(published, repeats=repeats)
                self._note(worker, found)
        return found

    def count_damaged(self, limit: int) -> int | None:
        """Count a sample that a worker skips; return the new count, None if the limit was reached."""
        with self._locked():
            passes, damaged = _COUNTS.unpack_from(self._words, _AT_COUNTS)
            if damaged >= limit:
                return None
            _COUNTS.pack_into(self._words, _AT_COUNTS, passes, damaged + 1)
        return int(damaged + 1)

    def _own(self) -> None:
        """Allocate memory owned by this process."""
        self._hold(os.getpid(), _new_file())
        _BEGUN.pack_into(self._words, _AT_BEGUN, -1, 0, 0)
        self._write_published()

    def _hold(self, owner: int, file: int) -> None:
        self._owner, self._file = owner, file
        self._words = mmap.mmap(file, _NUM_BYTES)
        self._counted_by, self._num_passes = -1, 0
        weakref.finalize(self, os.close, file).atexit = False

    def _write_published(self) -> None:
        _POSITION.pack_into(self._words, 0, *self._published)

    def _count_pass(self) -> int:
        """Count a pass of this worker; return how many it has begun."""
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

    def _decided(self, published: PassPosition, *, repeats: bool) -> PassPosition:
        serial, epoch, position = _BEGUN.unpack_from(self._words, _AT_BEGUN)
        if serial != published.serial or repeats:
            epoch, position = published.epoch, published.position
        else:
            epoch, position = epoch + 1, 0
        if published.serial >= serial:  # else this worker was started before the last pass began
            _BEGUN.pack_into(self._words, _AT_BEGUN, published.serial, epoch, position)
        return published._replace(epoch=epoch, position=position)

    def _found(self, worker: LoaderWorker) -> PassPosition | None:
        """Return what another worker of the same pass has decided."""
        count, _ = _COUNTS.unpack_from(self._words, _AT_COUNTS)
        for at in range(count - 1, max(-1, count - 1 - _MOST_PASSES), -1):
            *who, first, serial, epoch, position, order = _PASS.unpack_from(self._words, _place(at))
            # an earlier DataLoader may have had the same seed and worker count; its workers were started before these
            if who == self._who(worker) and abs(first - worker.first) < worker.count:
                return PassPosition(serial, epoch, position, order)
        return None

    def _who(self, worker: LoaderWorker) -> list[int]:
        return [worker.salt, self._num_passes, worker.count]

    def _note(self, worker: LoaderWorker, start: PassPosition) -> None:
        count, damaged = _COUNTS.unpack_from(self._words, _AT_COUNTS)
        _PASS.pack_into(self._words, _place(count), *self._who(worker), worker.first, *start)
        _COUNTS.pack_into(self._words, _AT_COUNTS, count + 1, damaged)


def _attach(owner: int, file: Any, published: PassPosition) -> PassStarts:
    made = object.__new__(PassStarts)
    made._published, made.is_private, made.unpublished = published, False, None
    made._hold(owner, file.detach())
    return made


_PRIVATE: weakref.WeakSet[PassStarts] = weakref.WeakSet()


def _publish_before_fork() -> None:
    for starts in [each for each in _PRIVATE if each.is_private]:
        starts.publish_from_now_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_publish_before_fork)


def _place(number: int) -> int:
    return _AT_PASSES + number % _MOST_PASSES * _PASS.size


def _new_file() -> int:
    """Return an unnamed file filled with zeros."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("rankwise-passes")
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.truncate(file, _NUM_BYTES)
    return file
