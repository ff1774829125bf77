"""Trouble with storage that may pass: what it is, and the pauses after which reading is tried again."""

from __future__ import annotations

import errno

__all__ = ["PAUSES_S", "is_passing"]

PAUSES_S = (0.05, 0.25, 1.0)

# What a network file system or a busy device answers once and not the next time.
_PASSING = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EAGAIN", "EINTR", "ESTALE", "ETIMEDOUT", "EBUSY", "ENOBUFS", "ENFILE", "EMFILE", "ECONNRESET")
    if hasattr(errno, name)
)


def is_passing(error: object) -> bool:
    """Whether an error, or the number of one, may be gone on the next try."""
    number = error.errno if isinstance(error, OSError) else error
    return number in _PASSING
