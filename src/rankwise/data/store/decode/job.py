"""The table through which Python and the compiled loop over chunks talk: which slot holds what, in bytes."""

from __future__ import annotations

from rankwise.data.store.decode.tasks import FIELDS

__all__ = ["SLOTS", "job_slots"]

_NAMES = (
    *FIELDS,
    # set before each run
    "first", "last", "axes", "src_unit", "dst_unit", "col_unit", "fill_step", "out", "plane",
    "read_buffer", "read_bytes", "decode_buffer", "context", "compressors",
    # set and read by the loop, chunk by chunk
    "size", "low", "high", "target", "source", "strided", "frame", "frame_bytes", "blosc_bytes", "num_axes",
    # then four tables with one entry for each axis: extents, strides of chunk and output, counters
    "work",
)  # fmt: skip

# Byte offset of each slot, by name.
SLOTS = {name: 8 * index for index, name in enumerate(_NAMES)}


def job_slots(ndim: int) -> int:
    """Return how many slots a job with so many axes has."""
    return len(_NAMES) + 4 * ndim
