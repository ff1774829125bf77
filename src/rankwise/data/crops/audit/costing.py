"""`CropCost`: what one random crop of an array costs, from metadata and, where known, sizes of stored chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.data.crops.audit.codecs import codec_name
from rankwise.data.crops.audit.counting import expected_blocks, expected_distinct, fewest_blocks
from rankwise.data.crops.audit.rates import Rates
from rankwise.data.crops.audit.sizes import StoredSizes
from rankwise.data.store.meta import ArrayMeta

__all__ = ["PAGE_BYTES", "CropCost", "cost_of", "mean_cost"]

PAGE_BYTES = 4096  # what file systems and their caches read at least


@dataclass(frozen=True, slots=True, kw_only=True)
class CropCost:
    """Means over crops whose origin is uniform (or on the grid of chunks, when aligned).

    Attributes:
        asked_bytes: elements of the crop in the dtype of the array.
        chunks: chunks that it touches.
        chunks_in_batch: the same when a chunk that several crops of a batch share counts once.
        aligned_chunks: chunks if its origin lay on their grid.
        files: files (shards, or chunks) that it touches.
        fewest_files: the fewest that any origin touches.
        decode_bytes: bytes decoded for it, shared chunks counted once.
        decode_waste: decoded bytes of the touched chunks over asked bytes.
        read_bytes: encoded bytes read for it, in whole pages, shared chunks counted once; None if sizes are unknown.
        read_waste: the pages that are read over the encoded bytes of the asked elements; None if sizes are unknown.
        cpu_s: expected CPU seconds on one core.
    """

    asked_bytes: float
    chunks: float
    chunks_in_batch: float
    aligned_chunks: float
    files: float
    fewest_files: float
    decode_bytes: float
    decode_waste: float
    read_bytes: float | None
    read_waste: float | None
    cpu_s: float


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
    """Return what a crop costs.

    Args:
        meta: the array.
        crop: extent along each axis; what is longer than the array is cut to it.
        rates: costs of a core.
        sizes: what is known of stored chunks.
        aligned: whether origins lie on the grid of chunks.
        batch: crops in a batch.
        num_arrays: arrays from which the crops of a batch are drawn.
    """
    inside = tuple(min(extent, size) for extent, size in zip(crop, meta.shape, strict=True))
    asked_bytes = math.prod(inside) * meta.dtype.itemsize
    fewest = float(math.prod(map(fewest_blocks, meta.shape, meta.chunks, inside)))
    chunks = fewest if aligned else _expected(meta.shape, meta.chunks, inside)
    shared = _shared(meta, inside, batch=batch, num_arrays=num_arrays) if not aligned else 1.0
    written = 1.0 if sizes is None else 1 - sizes.missing_share
    decoded = chunks * shared * written * meta.chunk_bytes
    read = None if sizes is None else chunks * shared * written * _pages(sizes.chunk_bytes) * PAGE_BYTES
    return CropCost(
        asked_bytes=asked_bytes,
        chunks=chunks,
        chunks_in_batch=chunks * shared,
        aligned_chunks=fewest,
        files=_expected(meta.shape, meta.files, inside),
        fewest_files=float(math.prod(map(fewest_blocks, meta.shape, meta.files, inside))),
        decode_bytes=decoded,
        decode_waste=chunks * meta.chunk_bytes / asked_bytes,
        read_bytes=read,
        read_waste=_read_waste(meta, sizes, asked_bytes, chunks),
        cpu_s=_cpu_s(meta, rates, elements=math.prod(inside), chunks=chunks * shared, decoded=decoded, read=read),
    )


def mean_cost(costs: Sequence[CropCost]) -> CropCost:
    """Return the mean over arrays that are drawn equally often."""

    def mean(name: str) -> float | None:
        values = [getattr(cost, name) for cost in costs]
        return None if None in values else sum(values) / len(values)

    return CropCost(**{name: mean(name) for name in CropCost.__dataclass_fields__})  # type: ignore[arg-type]


def _expected(shape: tuple[int, ...], blocks: tuple[int, ...], inside: tuple[int, ...]) -> float:
    return float(math.prod(map(expected_blocks, shape, blocks, inside)))


def _shared(meta: ArrayMeta, inside: tuple[int, ...], *, batch: int, num_arrays: int) -> float:
    """Share of the touches of a batch that are different chunks."""
    if batch == 1:
        return 1.0
    distinct = expected_distinct(meta.shape, meta.chunks, inside, draws=batch, share=1 / num_arrays)
    return distinct * num_arrays / (batch * _expected(meta.shape, meta.chunks, inside))


def _pages(num_bytes: float) -> float:
    """Pages that a run of bytes with a random offset touches."""
    return 0.0 if num_bytes < 1 else (num_bytes - 1) / PAGE_BYTES + 1


def _read_waste(meta: ArrayMeta, sizes: StoredSizes | None, asked_bytes: float, chunks: float) -> float | None:
    if sizes is None or sizes.chunk_bytes == 0:
        return None
    stored = asked_bytes * sizes.chunk_bytes / meta.chunk_bytes
    return chunks * _pages(sizes.chunk_bytes) * PAGE_BYTES / stored


def _cpu_s(meta: ArrayMeta, rates: Rates, *, elements: int, chunks: float, decoded: float, read: float | None) -> float:
    speed = rates.decode_bytes_per_s(codec_name(meta), fast=meta.codec.kind != "zarr")
    # of unknown sizes half a chunk is a fair guess; it hardly matters beside decoding
    reading = (decoded / 2 if read is None else read) / rates.read_bytes_per_s
    return chunks * rates.chunk_s + decoded / speed + reading + elements * rates.cast_s
