"""Say when a cache is too small for the order that uses it."""

from __future__ import annotations

import warnings

from rankwise.data.contract import Order, Source

__all__ = ["warn_small_cache"]


def warn_small_cache(source: Source, order: Order, *, rank: int, world_size: int) -> None:
    """Warn on the main rank if chunks will be decoded more than about once per epoch, and name the size that is needed.

    A rank reads its part of the lanes, and of each lane it needs a window of chunks at a time. Says nothing where
    source or order do not tell, and for a cache that was switched off.

    Args:
        source: has ``cache`` and ``decoded_bytes(num_samples)`` if it decodes chunks.
        order: has ``grid`` if it is windowed.
        rank: this rank.
        world_size: number of ranks.
    """
    grid, cache = getattr(order, "grid", None), getattr(source, "cache", None)
    decoded_bytes = getattr(source, "decoded_bytes", None)
    if grid is None or cache is None or decoded_bytes is None or rank != 0 or cache.capacity_bytes == 0:
        return
    if getattr(order, "kind", None) == "sequential":
        return
    chunks = -(-grid.lanes // world_size) * grid.window
    samples = chunks * max(source.chunk_samples, grid.chunk_samples)  # the order may be made for other fields
    needed = min(decoded_bytes(samples), decoded_bytes(source.num_samples))
    if needed > cache.capacity_bytes:
        warnings.warn(
            f"the order draws from {chunks} chunks at a time on each rank ({_mib(needed)} decoded), the cache keeps "
            f"{_mib(cache.capacity_bytes)}: chunks will be decoded several times per epoch. Give the source "
            f"cache={needed} or more, the order fewer lanes or a smaller window, or the store smaller chunks",
            stacklevel=3,
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
