"""Say once which arrays take the slower way, and which lose something on theirs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from rankwise.data.contract import DType
from rankwise.data.store.boxes import BoxRequest, conversion_loss
from rankwise.data.store.meta import ArrayMeta
from rankwise.errors import WorldError
from rankwise.world.place import find_place

__all__ = ["say_loss", "say_losses", "say_slow_arrays"]

_LOG = logging.getLogger(__name__)
_said: set[str] = set()
_judged: set[tuple[DType, DType, bool]] = set()


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


def say_losses(request: BoxRequest) -> None:
    """Name the first array of each conversion that may lose something of its values: once, on the main rank.

    What does not fit an integer dtype is not said but an error, value by value.
    """
    scaled = request.scale is not None
    for stored in {array.dtype for array in request.arrays}:  # every plan comes here: a look is all that it may cost
        if (stored, request.dtype, scaled) not in _judged:
            place = next(array.place for array in request.arrays if array.dtype == stored)
            say_loss(place, stored, request.dtype, scaled=scaled)


def say_loss(place: str, stored: DType, wanted: DType, *, scaled: bool = False) -> None:
    """Say of one array what `say_losses` does of those of a request."""
    if (stored, wanted, scaled) in _judged:
        return
    _judged.add((stored, wanted, scaled))
    loss = conversion_loss(stored, wanted, scaled=scaled)
    if loss and _is_main():
        _LOG.warning(
            "%s holds %s and comes out as %s: %s. Another dtype= keeps them; arrays of these dtypes are not named "
            "again",
            place,
            stored,
            wanted,
            loss,
        )


def _is_main() -> bool:
    try:
        return find_place(os.environ).rank == 0
    except WorldError:  # half a launcher's variables: whoever needs the place says so
        return True
