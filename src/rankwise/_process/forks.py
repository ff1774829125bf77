"""Forks: objects that forked processes must recreate, and a lock that a fork waits for."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
import weakref
from functools import partial
from typing import Protocol


def fork_gate() -> threading.RLock:
    """Return a lock that forks wait for, and that is open in children; the thread that holds it may fork."""
    gate = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=gate.acquire, after_in_parent=gate.release, after_in_child=partial(_open, gate))
    return gate


def _open(gate: threading.RLock) -> None:
    try:
        gate.release()
    except RuntimeError:
        # A Ctrl-C has interrupted the wait for the lock: Python prints errors raised before a fork, and forks anyway.
        # The lock is not released here then, but children must still be set up completely.
        gate._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  (as Python does with its own)


# Held while one of our threads imports modules or loads code: a fork in between would leave a child with partially
# imported modules, and with their locks held for ever. A fork takes locks in reverse order of registration. Locks of
# imports must be registered after ours; otherwise a fork holds them and waits for the thread that needs them: hence the
# imports of `logging` and `concurrent.futures.thread`.
forks_wait = fork_gate()


class _Renewable(Protocol):
    def renew(self) -> None:
        """Drop threads, locks and all that they guard: another thread may have been changing it."""


_things: weakref.WeakSet[_Renewable] = weakref.WeakSet()


def renew_in_children(thing: _Renewable) -> None:
    """Call ``thing.renew()`` in every process that is forked from this one; holds no reference to it.

    Its threads do not exist there, and one of them may have held its locks.
    """
    _things.add(thing)


def _renew() -> None:
    for thing in list(_things):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
