"""The cost of reading crops from a store: chunks, bytes, requests, codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from rankwise.data.contract import FloatArray
from rankwise.data.crops.audit.stores import Rates, StoredSizes
from rankwise.data.store.meta.values import ArrayMeta


def expected_blocks(size: int, block: int, window: int) -> Fraction:
    """Return the mean number of blocks that a window overlaps, for origins uniform over all that fit.

    Args:
        size: elements of the axis.
        block: elements of a block.
        window: elements of the window; one longer than the axis overlaps every block.
    """
    if window >= size:
        return Fraction(-(-size // block))
    num_origins = size - window + 1
    last = _floors(size, block) - _floors(window - 1, block)
    return 1 + Fraction(last - _floors(num_origins, block), num_origins)


def fewest_blocks(size: int, block: int, window: int) -> int:
    """Return the smallest number of blocks that a window overlaps: that for an origin on the grid."""
    return -(-min(window, size) // block)


def expected_whole_blocks(size: int, block: int, window: int) -> Fraction:
    """Return `expected_blocks`, where a block that extends beyond the axis counts by its fraction inside."""
    rest = size % block
    window = min(window, size)
    num_origins = size - window + 1
    # the last block is overlapped from the origins that reach it; they all end at size - window
    reaching = num_origins - max(size - rest - window + 1, 0)
    cut = Fraction(reaching, num_origins) * (1 - Fraction(rest, block)) if rest else Fraction(0)
    return expected_blocks(size, block, window) - cut


def touch_chances(size: int, block: int, window: int) -> tuple[FloatArray, FloatArray]:
    """Return the distinct probabilities of blocks being overlapped, and how many blocks of the axis have each.

    Block i is overlapped from origins ``i block - window + 1`` to ``(i + 1) block - 1``, as far as they fit.
    """
    window = min(window, size)
    first = np.arange(-(-size // block), dtype=np.int64) * block
    low = np.maximum(first - window + 1, 0)
    high = np.minimum(first + block - 1, size - window)
    chances, counts = np.unique((high - low + 1) / (size - window + 1), return_counts=True)
    return chances, counts.astype(np.float64)


def expected_distinct(
    sizes: tuple[int, ...], blocks: tuple[int, ...], window: tuple[int, ...], *, draws: int, share: float = 1.0
) -> float:
    """Return the mean number of distinct blocks of one array that independent boxes overlap together.

    Args:
        sizes: shape of the array.
        blocks: shape of a block.
        window: extent of the boxes.
        draws: number of boxes.
        share: probability that a box falls on this array, among others.
    """
    chances: FloatArray = np.ones(1)
    counts: FloatArray = np.ones(1)
    for size, block, extent in zip(sizes, blocks, window, strict=True):
        chance, count = touch_chances(size, block, extent)
        chances, inverse = np.unique(np.outer(chances, chance), return_inverse=True)
        counts = np.bincount(inverse.ravel(), weights=np.outer(counts, count).ravel()).astype(np.float64)
    return float(((1 - (1 - share * chances) ** draws) * counts).sum())


def _floors(stop: int, block: int) -> int:
    """Return the sum of ``j // block`` over all j below `stop`."""
    quotient, rest = divmod(stop, block)
    return block * quotient * (quotient - 1) // 2 + quotient * rest


def codec_name(meta: ArrayMeta) -> str:
    """Return the name of the compressor; for blosc the inner one, for zstd with its level if known."""
    if meta.codec.kind == "raw":
        return "none"
    found = [_name(codec) for codec in _compressors(meta.document)]
    names = [name for name in found if name]
    return "+".join(names) or meta.codec.why or meta.codec.kind


def _compressors(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the codecs after the array-to-bytes codec, innermost chunks first; version 2 has one compressor."""
    if "compressor" in document:
        one = document["compressor"]
        return [] if one is None else [{"name": one.get("id", ""), "configuration": one}]
    codecs = list(document.get("codecs") or [])
    for codec in codecs:
        if isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed":
            return _compressors(codec.get("configuration", {}))
    return [codec for codec in codecs if isinstance(codec, Mapping)]


def _name(codec: Mapping[str, Any]) -> str:
    name = str(codec.get("name", "")).removeprefix("numcodecs.")
    settings = codec.get("configuration") or {}
    if name == "blosc":
        return f"blosc-{settings.get('cname', 'lz4')}"
    if name == "zstd":
        return f"zstd-{settings['level']}" if "level" in settings else "zstd"
    return "" if name in {"bytes", "crc32c", "vlen-utf8"} else name


PAGE_BYTES = 4096  # smallest read of file systems and their caches


@dataclass(frozen=True, slots=True, kw_only=True)
class CropCost:
    """Means over crops with a uniform origin (or one on the chunk grid, if aligned).

    Attributes:
        asked_bytes: bytes of the crop in the array's dtype.
        chunks: chunks that it overlaps.
        chunks_in_batch: the same, but a chunk shared by several crops of a batch counts once.
        aligned_chunks: chunks if its origin were on the chunk grid.
        files: files (shards, or chunks) that it overlaps.
        fewest_files: the smallest number for any origin.
        decode_bytes: bytes decoded for it; shared chunks count once.
        read_bytes: encoded bytes read for it, in whole pages; shared chunks count once; None if sizes are unknown.
        cpu_s: expected CPU seconds on one core.
    """

    asked_bytes: float
    chunks: float
    chunks_in_batch: float
    aligned_chunks: float
    files: float
    fewest_files: float
    decode_bytes: float
    read_bytes: float | None
    cpu_s: float

    @property
    def decode_waste(self) -> float:
        """Bytes decoded per byte of crop, as in `Stats`."""
        return self.decode_bytes / self.asked_bytes

    @property
    def read_amplification(self) -> float | None:
        """Encoded bytes read per byte of crop, as in `Stats`; None if sizes are unknown."""
        return None if self.read_bytes is None else self.read_bytes / self.asked_bytes


def cost_of(
    meta: ArrayMeta,
    crop: tuple[int, ...],
    *,
    rates: Rates,
    sizes: StoredSizes | None = None,
    aligned: bool = False,
    batch: int = 1,
    num_arrays: int = 1,
) -> CropCost:
    """Return the cost of a crop of a batch, limited to the array; the batch is drawn from `num_arrays` arrays."""
    inside = tuple(min(extent, size) for extent, size in zip(crop, meta.shape, strict=True))
    asked_bytes = math.prod(inside) * meta.dtype.itemsize
    fewest = float(math.prod(map(fewest_blocks, meta.shape, meta.chunks, inside)))
    chunks = fewest if aligned else _expected(meta.shape, meta.chunks, inside)
    shared = _shared(meta, inside, chunks, aligned=aligned, batch=batch, num_arrays=num_arrays)
    written = 1.0 if sizes is None else 1 - sizes.missing_share
    decoded = chunks * shared * written * meta.chunk_bytes
    whole = chunks if aligned else float(math.prod(map(expected_whole_blocks, meta.shape, meta.chunks, inside)))
    read = None
    if sizes is not None:
        # pages that runs with random offsets overlap: for a run of n bytes n + 4095 on average
        pages_bytes = whole * sizes.chunk_bytes + chunks * (PAGE_BYTES - 1) if sizes.chunk_bytes else 0.0
        read = pages_bytes * shared * written
    speed = rates.decode_bytes_per_s(codec_name(meta), fast=meta.codec.kind != "zarr")
    # if sizes are unknown, assume half a chunk; it hardly matters compared with decoding
    reading = (decoded / 2 if read is None else read) / rates.read_bytes_per_s
    return CropCost(
        asked_bytes=asked_bytes,
        chunks=chunks,
        chunks_in_batch=chunks * shared,
        aligned_chunks=fewest,
        files=_expected(meta.shape, meta.files, inside),
        fewest_files=float(math.prod(map(fewest_blocks, meta.shape, meta.files, inside))),
        decode_bytes=decoded,
        read_bytes=read,
        cpu_s=chunks * shared * rates.chunk_s + decoded / speed + reading + math.prod(inside) * rates.cast_s,
    )


def mean_cost(costs: Sequence[CropCost]) -> CropCost:
    """Return the mean over arrays that are drawn with equal probability."""

    def mean(name: str) -> float | None:
        values = [getattr(cost, name) for cost in costs]
        return None if None in values else sum(values) / len(values)

    return CropCost(**{name: mean(name) for name in CropCost.__dataclass_fields__})  # type: ignore[arg-type]


def _expected(shape: tuple[int, ...], blocks: tuple[int, ...], inside: tuple[int, ...]) -> float:
    return float(math.prod(map(expected_blocks, shape, blocks, inside)))


def _shared(
    meta: ArrayMeta, inside: tuple[int, ...], chunks: float, *, aligned: bool, batch: int, num_arrays: int
) -> float:
    """Return the fraction of a batch's chunk reads that are distinct chunks."""
    if batch == 1:
        return 1.0
    shape, blocks, window = meta.shape, meta.chunks, inside
    if aligned:  # the same question for axes whose elements are the chunks that aligned crops can reach
        window = tuple(map(fewest_blocks, meta.shape, meta.chunks, inside))
        shape = tuple(
            (size - extent) // chunk + touched
            for size, extent, chunk, touched in zip(meta.shape, inside, meta.chunks, window, strict=True)
        )
        blocks = (1,) * meta.ndim
    return expected_distinct(shape, blocks, window, draws=batch, share=1 / num_arrays) * num_arrays / (batch * chunks)
