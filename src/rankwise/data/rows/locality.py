"""`RowLocality`: how rows lie in chunks, and the order that suits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import Locality, NDArray
from rankwise.data.rows.blockwise import num_stretches
from rankwise.data.rows.chosen import ChosenRows
from rankwise.data.rows.matrices import MatrixStack

__all__ = ["RowLocality"]

# What the chunks that an order mixes may take, decoded; the same number as the order's own.
_WINDOW_BYTES = 128 << 20
_LEAST_LANES, _MOST_LANES = 4, 64


@dataclass(frozen=True, kw_only=True)
class RowLocality(Locality):
    """Rows in the chunks of their matrices.

    Attributes:
        chunk_bytes: decoded bytes of the chunks that hold `chunk_samples` neighbours, on average.
        mix_lanes: of a mix of collections, its lanes; None = the order chooses.
    """

    chunk_bytes: int
    mix_lanes: int | None

    @classmethod
    def of(cls, chosen: ChosenRows, stacks: Sequence[MatrixStack], *, cache_bytes: int) -> RowLocality:
        """Return the locality of rows, as they are or drawn, in so many matrices; rows of a chunk are read together."""
        longest = min(chosen.num_stored, max((stack.chunk_rows for stack in stacks), default=1))
        options = chosen.options
        return cls(
            chunk_samples=_rows_of_chunk(chosen.rows, longest) if chosen.draws is None else chosen.draws.together,
            chunk_bytes=max(1, round(longest * sum(stack.row_bytes for stack in stacks))),
            cache_bytes=cache_bytes,
            group_steps=True,
            order_kind=None if options is None else options.order_kind,
            window_samples=None if options is None else options.window_samples,
            mix_lanes=None if options is None or options.mix is None else options.lanes,
        )

    def layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return the lanes that suit an order, so that its windows decode to at most 128 MiB; the window is its own.

        Of a mix both are those of the mix.
        """
        if self.mix_lanes is not None:
            return self.mix_lanes, 1
        lanes = min(_WINDOW_BYTES // self.chunk_bytes, batch_size)
        return int(np.clip(lanes, _LEAST_LANES, _MOST_LANES)), None


def _rows_of_chunk(rows: NDArray | None, chunk_rows: int) -> int:
    """Rows of a subset that one chunk holds, on average."""
    if rows is None or chunk_rows == 1:
        return chunk_rows
    return max(1, round(len(rows) / num_stretches(rows, chunk_rows)))
