"""Whether a disk has room for what a writing puts on it."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

__all__ = ["warn_of_room"]


def warn_of_room(work: Path, spilled_bytes: float) -> None:
    """Warn where rows on their way, which are not compressed, will not fit beside the collection.

    Args:
        work: the folder in which a collection is prepared; rows that lie in it already are not counted again.
        spilled_bytes: of all rows.
    """
    there = sum(path.stat().st_size for path in (work / "buckets").rglob("*") if path.is_file())
    free = shutil.disk_usage(work).free
    if spilled_bytes - there > free:
        warnings.warn(
            f"all rows lie in {work} once, not compressed, before they are written: up to {_gb(spilled_bytes - there)} "
            f"more, where {_gb(free)} are free. Take a disk with room for them, or add the inputs in several calls",
            stacklevel=6,
        )


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB"
