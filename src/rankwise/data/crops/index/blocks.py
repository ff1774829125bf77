"""How many neighbouring tiles are read together: the block that decodes least per tile within a budget of memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankwise.data.contract import FloatArray, IntArray

__all__ = ["MAX_REGION_BYTES", "choose_block", "region_chunks", "region_elements"]

# What a block may decode to: many small crops mix well and still share, few large ones share at all.
MIN_REGION_BYTES = 2 << 20
MAX_REGION_BYTES = 64 << 20
_CROPS_PER_REGION = 27
# Less gain than this is not worth a larger block, which mixes less.
_LEAST_GAIN = 0.99


def choose_block(
    *,
    extent: IntArray,
    stride: IntArray,
    chunks: IntArray,
    counts: IntArray,
    element_bytes: float,
    region_bytes: int | None,
) -> IntArray:
    """Return the tiles of a block along each axis, int64[D].

    From one tile on, the axis along which one more row of tiles lowers the decoded elements per tile most is extended,
    until the block exceeds the budget or nothing is gained. Tiles that share no chunk stay alone.

    Args:
        extent: int64[D], extent of a tile.
        stride: int64[D], distance between tiles.
        chunks: int64[D], chunk grid.
        counts: int64[D], tiles along each axis of the largest image.
        element_bytes: decoded bytes per element of the reference, over all fields.
        region_bytes: budget; None derives one from the size of a crop.
    """
    budget = _budget(float(np.prod(extent)) * element_bytes) if region_bytes is None else float(region_bytes)
    block = np.ones_like(extent)
    cost = region_elements(block, extent=extent, stride=stride, chunks=chunks)
    while True:
        best = None
        for grown in _larger(block, counts):
            elements = region_elements(grown, extent=extent, stride=stride, chunks=chunks)
            # Axes are cut evenly, so blocks are smaller than the largest one on average.
            mean = counts / -(-counts // grown)
            per_tile = region_elements(mean, extent=extent, stride=stride, chunks=chunks) / float(np.prod(mean))
            if elements * element_bytes <= budget and per_tile < cost * _LEAST_GAIN:
                best, cost = grown, per_tile
        if best is None:
            return block
        block = best


def _larger(block: IntArray, counts: IntArray) -> Iterator[IntArray]:
    """The blocks that are longer along one axis, by as much as it takes to cut the axis into one part fewer."""
    for axis, count in enumerate(counts.tolist()):
        parts = -(-count // int(block[axis]))
        if parts > 1:
            grown = block.copy()
            grown[axis] = -(-count // (parts - 1))
            yield grown


def region_elements(block: IntArray | FloatArray, *, extent: IntArray, stride: IntArray, chunks: IntArray) -> float:
    """Return the elements that reading a block of tiles decodes, on average over its places."""
    per_axis = region_chunks(block, extent=extent, stride=stride, chunks=chunks) * chunks
    return float(np.prod(per_axis))


def region_chunks(block: IntArray | FloatArray, *, extent: IntArray, stride: IntArray, chunks: IntArray) -> FloatArray:
    """Return the chunks along each axis that a block of tiles touches, float64[D], on average over its places.

    Blocks begin at multiples of the stride, so at offsets in a chunk that are multiples of a common divisor g of both,
    all alike: their mean is ceil(length / g) * g plus a chunk without one g, in chunks.
    """
    length = (block - 1) * stride + extent
    divisor = np.gcd(stride, chunks)
    touched: FloatArray = (np.ceil(length / divisor) * divisor + chunks - divisor) / chunks
    return touched


def _budget(crop_bytes: float) -> float:
    return float(np.clip(_CROPS_PER_REGION * crop_bytes, MIN_REGION_BYTES, MAX_REGION_BYTES))
