"""Numbers for arrays: cheap keys for what is remembered of them."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import Any

from rankwise.data.contract import IntArray
from rankwise.data.store.meta import ArrayMeta

__all__ = ["Serials", "chunk_keys"]

_MOST_OBJECTS = 2**14  # each holds a document
_MOST_PLACES = 2**17
_numbers = itertools.count()  # no number comes twice, so that what was kept under an old one is never taken for new


def chunk_keys(serial: int, numbers: IntArray) -> list[int]:
    """Return keys of chunks of an array: numbers, as the collector of garbage walks over tuples again and again.

    Args:
        serial: number of the array.
        numbers: int64[n], number of each chunk in it.
    """
    base = serial << 64
    return [base | number for number in numbers.tolist()]


class Serials:
    """Remembers the numbers of the arrays that were used last; thread-safe."""

    def __init__(self, most_objects: int = _MOST_OBJECTS, most_places: int = _MOST_PLACES) -> None:
        self._limits = most_objects, most_places
        self._lock = threading.Lock()
        self._by_object: OrderedDict[int, tuple[ArrayMeta, int]] = OrderedDict()
        self._by_value: OrderedDict[tuple[str, str], int] = OrderedDict()

    def of(self, array: ArrayMeta) -> int:
        """Return the number of an array; equal for equal places and metadata while it is remembered."""
        with self._lock:
            known = self._by_object.get(id(array))
            if known is None:
                value = (array.place, array.fingerprint)
                serial = self._by_value.pop(value, None)
                self._by_value[value] = next(_numbers) if serial is None else serial
                known = self._by_object[id(array)] = array, self._by_value[value]  # held, so that its id stays its own
                _cut(self._by_value, self._limits[1])
                _cut(self._by_object, self._limits[0])
            else:
                self._by_object.move_to_end(id(array))
            return known[1]

    def forget(self) -> None:
        """Give every array a new number from now on."""
        with self._lock:
            self._by_object.clear()
            self._by_value.clear()


def _cut(known: OrderedDict[Any, Any], most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)
