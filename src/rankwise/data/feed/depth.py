"""How many steps should lie ready before they are asked for."""

from __future__ import annotations

import math

from rankwise.data.contract import Order, Source

__all__ = ["LEAST_DEPTH", "window_depth"]

LEAST_DEPTH = 2
_READY_BYTES, _WHOLE_BYTES = 128 << 20, 384 << 20


def window_depth(source: Source, order: Order, *, world_size: int) -> int:
    """Return as many steps as a window of the order lasts, if 128 MiB hold them on this rank, else a part; at least 2.

    The chunks of a window are decoded with its first step, nearly all of them: the steps after it are read along with
    it where the source gains from that, or find them in the cache. With so many steps ready the next window is decoded
    while this one is in use; with fewer the consumer would wait at the beginning of each. A window that is read as one
    may take 384 MiB: read in parts, its chunks have to be kept for the next part, or decoded again, which for chosen
    columns of CSR rows costs half as much again. Parts are as long as each other.

    Args:
        source: has ``decoded_bytes(num_samples)`` if it decodes chunks, ``gains_together`` if it reads several steps as
            one, and ``window_samples`` if its samples are in an order of their own, of windows that last so long.
        order: has ``grid`` and ``batch_size`` if it is windowed.
        world_size: number of ranks.
    """
    grid, batch_size = getattr(order, "grid", None), getattr(order, "batch_size", None)
    lasting = getattr(source, "window_samples", None)
    if grid is None or batch_size is None or (getattr(order, "kind", None) == "sequential" and lasting is None):
        return LEAST_DEPTH
    steps: int = -(-(grid.lanes * grid.window * grid.chunk_samples if lasting is None else lasting) // batch_size)
    share: int = -(-batch_size // world_size)
    step_bytes = max(1, share * _sample_bytes(source, share))
    if getattr(source, "gains_together", False) and steps * step_bytes <= _WHOLE_BYTES:
        return max(LEAST_DEPTH, steps)
    parts = -(-steps // max(1, min(steps, _READY_BYTES // step_bytes)))
    return max(LEAST_DEPTH, -(-steps // parts))


def _sample_bytes(source: Source, num_samples: int) -> int:
    """Bytes of a sample in a batch; of a ragged field those that it is decoded from."""
    specs = source.fields.values()
    found = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs if not spec.ragged)
    decoded_bytes = getattr(source, "decoded_bytes", None)
    if decoded_bytes is not None and any(spec.ragged for spec in specs):
        found += decoded_bytes(num_samples) // num_samples
    return found
