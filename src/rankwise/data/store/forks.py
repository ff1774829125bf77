"""Things with locks and threads, made anew in processes that are forked from this one."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["renew_in_children"]


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
