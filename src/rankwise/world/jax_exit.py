"""A rank of a JAX program that fails leaves at once.

JAX ends each process with a meeting of all of them, so that none leaves while others still need it. A rank that failed
would wait there for ranks that wait for it in a computation: for minutes. It must go without a word; the others then
lose their connection to it, and fail too.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from types import TracebackType

__all__ = ["leave_at_once_on_failure", "note_failure"]

_INTERRUPTED = 130
_watched: int | None = None  # the process that is watched: a forked child is not
_exitcode: int | None = None


def leave_at_once_on_failure() -> None:
    """Watch this process; calling it again changes nothing."""
    global _watched  # noqa: PLW0603  (there is one process)
    if _watched == os.getpid():
        return
    _watched = os.getpid()
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not hasattr(sys, "ps1"):  # at a prompt an exception ends nothing
            note_failure(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1)
        before(kind, error, trace)

    sys.excepthook = hook
    # exit handlers run in reverse order: JAX's, which meets the others, was registered when JAX was imported
    atexit.register(_leave)


def note_failure(exitcode: int) -> None:
    """Record that this process ends because of an error.

    Args:
        exitcode: what it shall end with.
    """
    global _exitcode  # noqa: PLW0603
    _exitcode = exitcode


def _leave() -> None:
    if _exitcode is None or _watched != os.getpid():
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # nobody reads it any more, or there is none: we leave all the same
            stream.flush()
    os._exit(_exitcode)
