"""What lies inside a place: names of folders, in an order that people expect."""

from __future__ import annotations

import os
import re

from rankwise.errors import DataError

__all__ = ["list_inside", "natural_order"]

_DIGITS = re.compile(r"(\d+)")


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key to sort by that puts "2" before "10"."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part), part) if place % 2 else (1, 0, part) for place, part in enumerate(parts))


def list_inside(place: str) -> tuple[str, ...]:
    """Return the names of the folders in a place, in natural order; hidden ones are left out.

    Raises:
        DataError: the place cannot be listed.
    """
    if "://" in place:
        return _list_remote(place)
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError) as error:
        raise DataError(f"the folder {place} cannot be listed: {type(error).__name__}: {error}") from error
    return tuple(sorted(names, key=natural_order))


def _list_remote(url: str) -> tuple[str, ...]:
    from rankwise.data.store.meta.documents import remote_folders

    return tuple(sorted((name for name in remote_folders(url) if not name.startswith(".")), key=natural_order))
