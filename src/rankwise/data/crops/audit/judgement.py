"""Audits stores: finds what is slow, and why, with the underlying facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankwise.data.contract import DType
from rankwise.data.crops.audit.advice import Layout, advise, better_layout, warn
from rankwise.data.crops.audit.costs import CropCost, codec_name, cost_of, mean_cost
from rankwise.data.crops.audit.sizes import Rates, StoredSizes, load_rates, num_files, sample_sizes
from rankwise.data.crops.audit.stores import Fitting, fit, gather
from rankwise.data.store.boxes import check_conversion
from rankwise.launch.hardware import num_usable_cores

__all__ = ["AuditOptions", "AuditReport", "GroupAudit", "audit", "group_arrays"]

_SAMPLED_ARRAYS = 4  # of a group; their files show the size of its chunks


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
        rates: costs of a core; None = the table, with this machine's own speeds if measured.
    """

    crop: tuple[int, ...]
    channels: int | None = None
    dtype: DType | None = None
    batch: int = 8
    aligned: bool = False
    threads: int | None = None
    sample_files: int = 4
    rates: Rates | None = None


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
    rates = options.rates or load_rates()
    threads = options.threads or num_usable_cores()
    return AuditReport(
        groups=tuple(_audit_group(group, options, rates, threads) for group in group_arrays(fittings)),
        skipped=(*unreadable, *skipped),
        options=options,
        rates=rates,
        threads=threads,
    )


def group_arrays(fittings: Sequence[Fitting]) -> list[list[Fitting]]:
    """Group arrays by layout: level, crop, chunks, shards, dtype, codec; the largest group first."""
    groups: dict[tuple[object, ...], list[Fitting]] = {}
    for fitting in fittings:
        meta = fitting.meta
        key = (
            fitting.level,
            fitting.crop,
            meta.chunks,
            meta.files,
            meta.index is None,
            meta.dtype.name,
            codec_name(meta),
            meta.codec.kind,
        )
        groups.setdefault(key, []).append(fitting)
    return sorted(groups.values(), key=len, reverse=True)


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
