"""Say once which arrays take the slower way."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from rankwise.data.store.meta import ArrayMeta
from rankwise.errors import WorldError
from rankwise.world.place import find_place

__all__ = ["say_slow_arrays"]

_LOG = logging.getLogger(__name__)
_said: set[str] = set()


def say_slow_arrays(arrays: Iterable[ArrayMeta]) -> None:
    """Name the first array of each kind that only zarr-python decodes: once for a process, on the main rank."""
    for array in arrays:
        why = array.codec.why
        if array.codec.kind != "zarr" or why in _said:
            continue
        _said.add(why)
        if _is_main():
            _LOG.warning(
                "%s is decoded by zarr-python, chunk by chunk, which is slower than the compiled kernel: %s. Arrays of "
                "this kind are not named again; statistics count their chunks as slow",
                array.place,
                why,
            )


def _is_main() -> bool:
    try:
        return find_place(os.environ).rank == 0
    except WorldError:  # half a launcher's variables: whoever needs the place says so
        return True
