"""Make a failed rank of a JAX program exit at once.

At exit, JAX runs a barrier of all processes, so that none leaves while others still need it. A failed rank would wait
there for minutes for ranks that wait for it in a computation. So it must exit without the barrier; the others then
lose their connection to it and fail too.
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
_watched: int | None = None  # pid of the watched process; a forked child is not watched
_exitcode: int | None = None


def leave_at_once_on_failure() -> None:
    """Watch this process; a second call does nothing."""
    global _watched  # noqa: PLW0603  (there is one process)
    if _watched == os.getpid():
        return
    _watched = os.getpid()
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not hasattr(sys, "ps1"):  # at a prompt an exception does not end the process
            note_failure(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1)
        before(kind, error, trace)

    sys.excepthook = hook
    # exit handlers run in reverse order, so this one runs before JAX's, which was registered at the import of JAX
    atexit.register(_leave)


def note_failure(exitcode: int) -> None:
    """Record that this process ends because of an error.

    Args:
        exitcode: the exit code to use.
    """
    global _exitcode  # noqa: PLW0603
    _exitcode = exitcode


def _leave() -> None:
    if _exitcode is None or _watched != os.getpid():
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the stream is closed or missing: exit anyway
            stream.flush()
    os._exit(_exitcode)
