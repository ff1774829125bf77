"""Audits stores: finds what is slow, and why, with the underlying facts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rankwise.data.contract import DType
from rankwise.data.crops.audit.costs import CropCost, codec_name, cost_of, expected_blocks, mean_cost
from rankwise.data.crops.audit.stores import (
    Fitting,
    Rates,
    StoredSizes,
    fit,
    gather,
    load_rates,
    num_files,
    sample_sizes,
)
from rankwise.data.store.boxes import check_conversion
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.launch.hardware import num_usable_cores

_SAMPLED_ARRAYS = 4  # of a group; their files show the size of its chunks
_KIB, _MIB, _GB = 2**10, 2**20, 10**9
_LEAST_CHUNK, _MOST_CHUNK = 64 * _KIB, 1 * _MIB
_WORTH = 1.1  # a smaller gain does not justify a rewrite
_AS_GOOD = 1.03
_FEWER = 8  # times; saving fewer files does not justify a rewrite
_MANY_FILES = 10_000
_MANY_FILES_OF_A_CROP = 64
_NOT_SPACE = {"t", "time", "c", "channel", "channels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """What to read.

    Attributes:
        crop: extent of a crop along the last axes that are not channels, or along all axes; further axes (time) are
            taken one element at a time.
        channels: number of channels of a crop that does not name their axis; None = all.
        dtype: dtype of the batch; None = that of each array.
        batch: crops per batch; shared chunks are decoded once.
        aligned: whether origins are rounded to the chunk grid.
        threads: cores that decode; None = those that this process may use.
        sample_files: files per array whose sizes or shard indexes are read; 0 = metadata only.
    """

    crop: tuple[int, ...]
    channels: int | None = None
    dtype: DType | None = None
    batch: int = 8
    aligned: bool = False
    threads: int | None = None
    sample_files: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A better layout for an array.

    Attributes:
        chunks: shape of a chunk.
        shards: shape of a shard.
        decode_waste: decoded bytes divided by requested bytes.
        speedup: estimated CPU time per crop now, divided by that with this layout.
    """

    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    decode_waste: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAudit:
    """Arrays with the same storage layout.

    Attributes:
        fittings: the arrays, each with the crop along its axes.
        codec: name of their codec.
        cost: of one crop, the mean over the arrays.
        batch_bytes: memory of one batch.
        crops_per_s: estimated rate with all threads.
        sizes: facts from a few files; None = metadata only.
        sizes_from: the source of `sizes`, in words.
        layout: a better layout.
        advice: advice, in sentences.
        warnings: warnings, in sentences.
    """

    fittings: tuple[Fitting, ...] = field(repr=False)
    codec: str
    cost: CropCost
    batch_bytes: int
    crops_per_s: float
    sizes: StoredSizes | None
    sizes_from: str
    layout: Layout
    advice: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def num_files(self) -> int:
        """Number of files of all arrays when completely written."""
        return sum(num_files(fitting.meta) for fitting in self.fittings)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The audit of a collection.

    Attributes:
        groups: arrays grouped by layout, the largest group first.
        skipped: arrays that the crop does not fit, a line each.
        options: the options.
        rates: costs of a core, as used in the estimate.
        threads: number of cores, as used in the estimate.
    """

    groups: tuple[GroupAudit, ...]
    skipped: tuple[str, ...]
    options: AuditOptions
    rates: Rates
    threads: int


def audit(uris: Sequence[str], options: AuditOptions) -> AuditReport:
    """Predict the cost of crops.

    Args:
        uris: arrays, groups of them (images, plates), folders of these, or catalogue files.
        options: what to read.

    Raises:
        DataError: there is nothing at a URI, or its metadata or a sampled shard index is damaged.
        ConfigError: the crop fits no array, or elements cannot be converted to the dtype.
    """
    arrays, unreadable = gather(uris)
    fittings, skipped = fit(arrays, options.crop, channels=options.channels)
    rates = load_rates()
    threads = options.threads or num_usable_cores()
    groups: dict[tuple[object, ...], list[Fitting]] = {}  # by layout
    for fitting in fittings:
        meta = fitting.meta
        stored = (meta.chunks, meta.files, meta.index is None, meta.dtype.name, codec_name(meta), meta.codec.kind)
        groups.setdefault((fitting.level, fitting.crop, *stored), []).append(fitting)
    in_order = sorted(groups.values(), key=len, reverse=True)
    return AuditReport(
        groups=tuple(_audit_group(group, options, rates, threads) for group in in_order),
        skipped=(*unreadable, *skipped),
        options=options,
        rates=rates,
        threads=threads,
    )


def _audit_group(group: Sequence[Fitting], options: AuditOptions, rates: Rates, threads: int) -> GroupAudit:
    meta, crop = group[0].meta, group[0].crop
    check_conversion(meta.dtype, options.dtype or meta.dtype, scaled=False, place=meta.place)
    sizes, sizes_from = _sizes(group, options.sample_files)
    shapes = {fitting.meta.shape: fitting for fitting in group}
    costs = {
        shape: cost_of(
            fitting.meta,
            fitting.crop,
            rates=rates,
            sizes=sizes,
            aligned=options.aligned,
            batch=options.batch,
            num_arrays=len(group),
        )
        for shape, fitting in shapes.items()
    }
    cost = mean_cost([costs[fitting.meta.shape] for fitting in group])
    layout = better_layout(meta, crop, cost, rates, sizes, batch=options.batch, num_arrays=len(group))
    return GroupAudit(
        fittings=tuple(group),
        codec=codec_name(meta),
        cost=cost,
        batch_bytes=options.batch * math.prod(crop) * (options.dtype or meta.dtype).itemsize,
        crops_per_s=(threads if meta.codec.kind != "zarr" else 1) / cost.cpu_s,
        sizes=sizes,
        sizes_from=sizes_from,
        layout=layout,
        advice=tuple(advise(meta, cost, layout, sizes)),
        warnings=tuple(warn(meta, crop, cost, num_arrays=len(group))),
    )


def _sizes(group: Sequence[Fitting], most_files: int) -> tuple[StoredSizes | None, str]:
    step = max(1, len(group) // _SAMPLED_ARRAYS)
    seen = [sample_sizes(fitting.meta, most_files=most_files) for fitting in group[::step][:_SAMPLED_ARRAYS]]
    known = [sizes for sizes in seen if sizes is not None]
    if not known:
        why = "as asked" if most_files < 1 else "sizes of remote or unusually indexed files are not read"
        return None, f"metadata only ({why})"
    total = StoredSizes.together(known)
    return total, f"metadata and {total.files_sampled} files ({total.chunks_sampled} chunks)"


def better_layout(
    meta: ArrayMeta,
    crop: tuple[int, ...],
    now: CropCost,
    rates: Rates,
    sizes: StoredSizes | None,
    *,
    batch: int = 1,
    num_arrays: int = 1,
) -> Layout:
    """Return the cheapest layout for crops: chunks of 64 KiB to 1 MiB, smaller than the crop, flat along other axes.

    Shards have at least 1 GB, or contain the whole array. Origins are assumed to be uniform. The comparison is for
    batches of `batch` crops from `num_arrays` arrays.
    """
    chunks = _best_chunk(meta, crop, rates)
    like = replace(meta, chunks=chunks, files=chunks)
    scaled = sizes and replace(sizes, chunk_bytes=sizes.chunk_bytes * like.chunk_bytes / meta.chunk_bytes)
    then = cost_of(like, crop, rates=rates, sizes=scaled, batch=batch, num_arrays=num_arrays)
    ratio = sizes.chunk_bytes / meta.chunk_bytes if sizes and sizes.chunk_bytes else 1.0
    return Layout(
        chunks=chunks,
        shards=_shard(meta, chunks, ratio),
        decode_waste=then.decode_waste,
        speedup=now.cpu_s / then.cpu_s,
    )


def advise(meta: ArrayMeta, now: CropCost, layout: Layout, sizes: StoredSizes | None) -> list[str]:
    """Return advice in sentences, most useful first."""
    said = []
    good_size = _LEAST_CHUNK <= meta.chunk_bytes <= _MOST_CHUNK
    if layout.speedup >= _WORTH or (not good_size and layout.speedup >= 1):
        said.append(
            f"write chunks of {shape_text(layout.chunks)} ({_size(_chunk_bytes(meta, layout.chunks))}): reads decode "
            f"{layout.decode_waste:.1f} times the requested bytes instead of {now.decode_waste:.1f}, about "
            f"{layout.speedup:.1f} times faster (estimate)"
        )
    if now.chunks > _WORTH * now.aligned_chunks:
        said.append(
            f'crop with align="chunk" where positions may be rounded: {now.aligned_chunks:.0f} chunks per crop instead '
            f"of {now.chunks:.1f}"
        )
    files, then = num_files(meta), num_files(replace(meta, files=layout.shards))
    file_bytes = sizes.file_bytes if sizes and sizes.files_found else _chunk_bytes(meta, meta.files)
    if file_bytes < _GB and files >= _FEWER * then:
        said.append(f"write shards of {shape_text(layout.shards)}: {then:,} instead of {files:,} files for this array")
    name = codec_name(meta)
    if name == "zstd" or (name.startswith("zstd-") and not name.endswith("-1") and not name.startswith("zstd--")):
        said.append("zstd at level 1 decodes faster and is hardly larger; blosc-lz4 decodes even faster, but is larger")
    return said


def warn(meta: ArrayMeta, crop: tuple[int, ...], now: CropCost, *, num_arrays: int) -> list[str]:
    """Return warnings, in sentences."""
    said = []
    if meta.codec.kind == "zarr":
        said.append(f"no fast path: zarr-python decodes this array ({meta.codec.why})")
    long = [_axis(meta, axis) for axis in range(meta.ndim) if meta.chunks[axis] > min(crop[axis], meta.shape[axis])]
    if long:
        said.append(f"a chunk is longer than the crop along {', '.join(long)}: the rest is decoded in vain")
    too_long = [_axis(meta, axis) for axis in range(meta.ndim) if crop[axis] > meta.shape[axis]]
    if too_long:
        said.append(f"the crop is longer than the array along {', '.join(too_long)}: it needs pad=")
    files = num_files(meta) * num_arrays
    if files > _MANY_FILES and meta.index is None:
        said.append(f"{files:,} files that hold one chunk each: listing, copying and opening them is slow; use shards")
    if now.files > _MANY_FILES_OF_A_CROP:
        said.append(f"one crop opens {now.files:.0f} files")
    return said


def _best_chunk(meta: ArrayMeta, crop: tuple[int, ...], rates: Rates) -> tuple[int, ...]:
    inside = [min(extent, size) for extent, size in zip(crop, meta.shape, strict=True)]
    choices = [
        [2**power for power in range(extent.bit_length())] if _is_space(meta, axis) else [1]
        for axis, extent in enumerate(inside)
    ]
    touched = [
        {block: float(expected_blocks(meta.shape[axis], block, inside[axis])) for block in blocks}
        for axis, blocks in enumerate(choices)
    ]
    most = math.prod(max(blocks) for blocks in choices) * meta.dtype.itemsize
    least_bytes = min(_LEAST_CHUNK, most)
    speed = rates.decode_bytes_per_s(codec_name(meta), fast=meta.codec.kind != "zarr")
    costs: dict[tuple[int, ...], float] = {}
    for chunk in itertools.product(*choices):
        num_bytes = _chunk_bytes(meta, chunk)
        if least_bytes <= num_bytes <= max(_MOST_CHUNK, meta.dtype.itemsize):
            chunks = math.prod(touched[axis][block] for axis, block in enumerate(chunk))
            costs[chunk] = chunks * (rates.chunk_s + num_bytes / speed)
    cheapest = min(costs.values())
    as_good = [chunk for chunk, cost in costs.items() if cost <= _AS_GOOD * cheapest]
    return max(as_good, key=lambda chunk: (math.prod(chunk), chunk))


def _shard(meta: ArrayMeta, chunks: tuple[int, ...], ratio: float) -> tuple[int, ...]:
    """Double chunks along space, then along the other axes, until a file has 1 GB or contains the whole array."""
    shard = list(chunks)
    order = sorted(range(meta.ndim), key=lambda axis: not _is_space(meta, axis))
    while _chunk_bytes(meta, tuple(shard)) * ratio < _GB:
        open_axes = [axis for axis in order if shard[axis] < meta.shape[axis]]
        if not open_axes:
            break
        space = [axis for axis in open_axes if _is_space(meta, axis)] or open_axes[:1]
        smallest = min(space, key=lambda axis: shard[axis] / chunks[axis])
        shard[smallest] = min(2 * shard[smallest], -(-meta.shape[smallest] // chunks[smallest]) * chunks[smallest])
    return tuple(shard)


def _is_space(meta: ArrayMeta, axis: int) -> bool:
    name = meta.dimension_names[axis]
    if any(meta.dimension_names):
        return (name or "").lower() not in _NOT_SPACE
    return axis >= meta.ndim - 3


def _chunk_bytes(meta: ArrayMeta, chunk: tuple[int, ...]) -> int:
    return math.prod(chunk) * meta.dtype.itemsize


def _axis(meta: ArrayMeta, axis: int) -> str:
    return f"{meta.dimension_names[axis] or f'axis {axis}'} ({meta.chunks[axis]})"


def shape_text(extents: tuple[int, ...]) -> str:
    """Return extents as text: ``16x128x128``."""
    return "x".join(map(str, extents))


def _size(num_bytes: float) -> str:
    return f"{num_bytes / _MIB:.1f} MiB" if num_bytes >= _MIB else f"{num_bytes / _KIB:.0f} KiB"
