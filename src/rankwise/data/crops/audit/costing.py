"""`CropCost`: what one random crop of an array costs, from metadata and, where known, sizes of stored chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.data.crops.audit.codecs import codec_name
from rankwise.data.crops.audit.counting import expected_blocks, expected_distinct, expected_whole_blocks, fewest_blocks
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
        read_bytes: encoded bytes read for it, in whole pages, shared chunks counted once; None if sizes are unknown.
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
    shared = _shared(meta, inside, chunks, aligned=aligned, batch=batch, num_arrays=num_arrays)
    written = 1.0 if sizes is None else 1 - sizes.missing_share
    decoded = chunks * shared * written * meta.chunk_bytes
    whole = chunks if aligned else float(math.prod(map(expected_whole_blocks, meta.shape, meta.chunks, inside)))
    pages_bytes = None if sizes is None else _in_pages(whole * sizes.chunk_bytes, chunks)
    read = None if pages_bytes is None else pages_bytes * shared * written
    return CropCost(
        asked_bytes=asked_bytes,
        chunks=chunks,
        chunks_in_batch=chunks * shared,
        aligned_chunks=fewest,
        files=_expected(meta.shape, meta.files, inside),
        fewest_files=float(math.prod(map(fewest_blocks, meta.shape, meta.files, inside))),
        decode_bytes=decoded,
        read_bytes=read,
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


def _shared(
    meta: ArrayMeta, inside: tuple[int, ...], chunks: float, *, aligned: bool, batch: int, num_arrays: int
) -> float:
    """Share of the touches of a batch that are different chunks."""
    if batch == 1:
        return 1.0
    shape, blocks, window = meta.shape, meta.chunks, inside
    if aligned:  # the same question about axes whose elements are the chunks that aligned crops reach
        window = tuple(map(fewest_blocks, meta.shape, meta.chunks, inside))
        shape = tuple(
            (size - extent) // chunk + touched
            for size, extent, chunk, touched in zip(meta.shape, inside, meta.chunks, window, strict=True)
        )
        blocks = (1,) * meta.ndim
    return expected_distinct(shape, blocks, window, draws=batch, share=1 / num_arrays) * num_arrays / (batch * chunks)


def _in_pages(num_bytes: float, num_runs: float) -> float:
    """Bytes of the pages that runs of bytes with random offsets touch: a run of n bytes n + 4095 on average."""
    return num_bytes + num_runs * (PAGE_BYTES - 1) if num_bytes else 0.0


def _cpu_s(meta: ArrayMeta, rates: Rates, *, elements: int, chunks: float, decoded: float, read: float | None) -> float:
    speed = rates.decode_bytes_per_s(codec_name(meta), fast=meta.codec.kind != "zarr")
    # of unknown sizes half a chunk is a fair guess; it hardly matters beside decoding
    reading = (decoded / 2 if read is None else read) / rates.read_bytes_per_s
    return chunks * rates.chunk_s + decoded / speed + reading + elements * rates.cast_s
