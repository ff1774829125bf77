"""`RowLocality`: how rows lie in chunks, and the order that suits them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankwise.data.rows.blockwise import num_stretches
from rankwise.data.rows.chosen import ChosenRows
from rankwise.data.rows.matrices import MatrixStack

__all__ = ["RowLocality"]

# What the chunks that an order mixes may take, decoded; the same number as the order's own.
_WINDOW_BYTES = 128 << 20
_LEAST_LANES, _MOST_LANES = 4, 64


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLocality:
    """Rows in the chunks of their matrices.

    Attributes:
        chosen: the rows, as they are or drawn.
        stacks: the matrices.
    """

    chosen: ChosenRows
    stacks: tuple[MatrixStack, ...]

    @property
    def chunk_samples(self) -> int:
        """Neighbouring samples that are stored together, on average: those of the longest chunk of all matrices."""
        return self.chunk_rows if self.chosen.draws is None else self.chosen.draws.together

    @cached_property
    def chunk_rows(self) -> int:
        """Rows of the subset that one chunk holds, on average."""
        rows, chunk = self.chosen.rows, self._longest_chunk
        if rows is None or chunk == 1:
            return chunk
        return max(1, round(len(rows) / num_stretches(rows, chunk)))

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of the chunks that hold `chunk_samples` neighbours, on average."""
        return max(1, round(self._longest_chunk * sum(stack.row_bytes for stack in self.stacks)))

    @property
    def _longest_chunk(self) -> int:
        return min(self.chosen.num_stored, max((stack.chunk_rows for stack in self.stacks), default=1))

    def decoded_bytes(self, num_samples: int) -> int:
        """Return the bytes that so many neighbouring samples take when decoded, about."""
        return -(-num_samples // self.chunk_samples) * self.chunk_bytes

    def order_layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return the lanes that suit an order, so that its windows decode to at most 128 MiB; the window is its own.

        Of a mix both are those of the mix.
        """
        options = self.chosen.options
        if options is not None and options.mix is not None:
            return options.lanes, 1
        lanes = min(_WINDOW_BYTES // self.chunk_bytes, batch_size)
        return int(np.clip(lanes, _LEAST_LANES, _MOST_LANES)), None
