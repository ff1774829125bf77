"""The table through which Python and the compiled loop over chunks talk: which slot holds what."""

from __future__ import annotations

from rankwise.data.store.decode.layout import LAYOUT_FIELDS
from rankwise.data.store.decode.tasks import TASK_FIELDS

__all__ = ["NUM_SLOTS", "SLOTS"]

_NAMES = (
    # addresses of tables
    *TASK_FIELDS, *LAYOUT_FIELDS,
    # set before each run
    "first", "last", "axes", "dst_unit", "col_unit", "out", "plane", "fill_rows", "fill_step",
    "read_buffer", "read_bytes", "decode_buffer", "context", "compressors", "stage", "stream",
    # set before runs that spread sparse rows over dense ones
    "spread", "weave", "columns", "column_bytes", "rows", "row_lengths", "tables", "places", "num_cols", "width",
    "marks", "named",
    # written and read by the loop, target by target
    "its_places", "its_num_cols", "elements", "blank", "spare", "waiting", "parked", "parked_too",
    # written and read by the loop, chunk by chunk
    "source", "strided", "blosc_bytes",
)  # fmt: skip

# Byte offset of each slot, by name.
SLOTS = {name: 8 * index for index, name in enumerate(_NAMES)}
NUM_SLOTS = len(_NAMES)
