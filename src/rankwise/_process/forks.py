"""Forks: what is made anew in processes that are forked from this one, and what a fork waits for."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
import weakref
from functools import partial
from typing import Protocol

__all__ = ["fork_gate", "forks_wait", "renew_in_children"]


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
        # A Ctrl-C has ended the wait for it: Python prints what is raised before a fork, and forks all the same. Here
        # nobody gives it back then, and nothing that children need may be left out because of it.
        gate._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  (as Python does with its own)


# Held where a thread of ours imports modules or loads code: a fork in the middle of it would leave a child with modules
# that are half there, and with locks of theirs that nobody opens. A fork takes locks in reverse order of registration.
# Those that loading takes must come after this one, else a fork holds them and waits for the thread that wants them:
# hence the imports of `logging` and `concurrent.futures.thread`.
forks_wait = fork_gate()


class _Renewable(Protocol):
    def renew(self) -> None:
        """Forget threads, locks and all that they guard: another thread may have been in the middle of changing it."""


_things: weakref.WeakSet[_Renewable] = weakref.WeakSet()


def renew_in_children(thing: _Renewable) -> None:
    """Have ``thing.renew()`` called in every process that is forked from this one; holds no reference to it.

    Its threads do not live there, and its locks may be held for ever by one of them.
    """
    _things.add(thing)


def _renew() -> None:
    for thing in list(_things):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
