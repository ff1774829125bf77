"""Maps of masks and labels that one rank found, for all of them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray

__all__ = ["SharedMaps"]


class SharedMaps:
    """Maps by key, eight cells to a byte; they stay as long as the index, so that its parts need not read again."""

    def __init__(self) -> None:
        self._packed: dict[Hashable, tuple[tuple[int, ...], npt.NDArray[np.uint8]]] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def put(self, key: Hashable, cells: BoolArray) -> None:
        """Keep a map."""
        self._packed[key] = cells.shape, np.packbits(cells)

    def get(self, key: Hashable) -> BoolArray | None:
        """Return a map, None if it is not here."""
        if key not in self._packed:
            return None
        shape, packed = self._packed[key]
        cells: BoolArray = np.unpackbits(packed, count=int(np.prod(shape))).astype(np.bool_).reshape(shape)
        return cells
