"""Where vitals are kept: a folder in memory if this machine has one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folder"]

_MEMORY = Path("/dev/shm")  # noqa: S108  (tmpfs of Linux; each folder in it is our own, mode 700)


def make_folder() -> Path:
    """Make an empty folder that only this user can enter, in memory if possible; the caller removes it."""
    import tempfile  # which every rank would load for nothing

    memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK)
    return Path(tempfile.mkdtemp(prefix="rankwise-", dir=_MEMORY if memory else None))
