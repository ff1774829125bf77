"""Say beforehand when fewer files can be open than are read from at a time."""

from __future__ import annotations

import logging
from pathlib import Path

from rankwise.data.store.files.handles import MOST_FILES, limit_for

__all__ = ["say_few_handles", "system_file_limit"]

_LOG = logging.getLogger(__name__)
_FILE_MAX = Path("/proc/sys/fs/file-max")


def system_file_limit(path: Path = _FILE_MAX) -> int | None:
    """Return how many files all processes of this machine may have open together; None where it does not say."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def say_few_handles(*, wanted: int, capacity: int, local_ranks: int, system_limit: int | None) -> None:
    """Warn if files will be closed and opened again all the time, or all ranks together may open too many.

    Nothing fails for the first reason: the files that were used last stay open, the others are opened anew.

    Args:
        wanted: files that one rank reads from at a time, over all steps in flight.
        capacity: files that its reader keeps open.
        local_ranks: ranks of this machine.
        system_limit: see `system_file_limit`.
    """
    if wanted > capacity:
        _LOG.warning(
            "the steps in flight of a rank lie in up to %d files, its reader keeps %d open: files are opened again and "
            "again. %s",
            wanted,
            capacity,
            f"Raise the limit (ulimit -n {limit_for(wanted)} or more), or store larger shards"
            if wanted <= MOST_FILES
            else "Store larger shards, or take a smaller batch",
        )
    together = min(wanted, capacity) * local_ranks
    if system_limit is not None and together > system_limit:
        _LOG.warning(
            "the %d ranks of this machine may keep %d files open together, the system allows %d: take a smaller depth "
            "or batch, or raise fs.file-max",
            local_ranks,
            together,
            system_limit,
        )
