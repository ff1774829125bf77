"""Measures how fast crops are read from a store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.crops.audit.judgement import AuditOptions, AuditReport, GroupAudit, audit
from rankwise.data.crops.audit.stores import Rates, save_rates
from rankwise.data.store.boxes import BoxReport, BoxRequest
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

_WARM_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBench:
    """The time for reading one group of arrays.

    Attributes:
        predicted: the audit of the group.
        batch: crops of a batch.
        first_s: wall seconds of the first batch, which opens files, reads shard indexes and loads kernels.
        plan_s: seconds of planning one batch, median.
        wall_s: wall seconds of one batch including planning, for each round.
        cpu_s: CPU seconds of one batch over all threads, for each round.
        chunks: distinct chunks read per crop, mean.
        read_bytes: encoded bytes per crop, mean.
        decode_bytes: decoded bytes per crop, mean.
        fast_share: fraction of the chunks that our own decoders decoded.
        bottleneck: the bottleneck, in a sentence.
    """

    predicted: GroupAudit
    batch: int
    first_s: float
    plan_s: float
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    chunks: float
    read_bytes: float
    decode_bytes: float
    fast_share: float
    bottleneck: str

    @property
    def crops_per_s(self) -> float:
        """Crops per second of wall time, median."""
        return self.batch / statistics.median(self.wall_s)

    def decode_rate(self, rates: Rates) -> float:
        """Return decoded bytes per CPU second of one core, after subtracting all other costs from the table."""
        cost = self.predicted.cost
        elements = cost.asked_bytes / self.predicted.fittings[0].meta.dtype.itemsize
        other_s = self.chunks * rates.chunk_s + self.read_bytes / rates.read_bytes_per_s + elements * rates.cast_s
        spent_s = statistics.median(self.cpu_s) / self.batch
        # if decoding takes almost no time, the difference of the two is meaningless
        return self.decode_bytes / max(spent_s - other_s, 0.1 * spent_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Measurements of `rounds` batches, with the prediction."""

    audit: AuditReport
    groups: tuple[GroupBench, ...]
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    plan: BoxPlan
    report: BoxReport
    plan_s: float
    wall_s: float
    cpu_s: float


def measure(uris: Sequence[str], options: AuditOptions, *, rounds: int = 20, seed: int = 0) -> BenchReport:
    """Read random crops from every group of arrays below URIs.

    Decoded chunks are not kept between batches. Crops lie inside the arrays; an array shorter than the crop is
    read to its end.

    Args:
        uris: see `audit`.
        options: what to read.
        rounds: number of timed batches, after 2 untimed ones.
        seed: seed of the random origins.

    Raises:
        DataError: a crop cannot be read.
        ConfigError: the crop fits no array, or a number is below 1.
    """
    if rounds < 1 or options.batch < 1:
        raise ConfigError(f"a measurement needs rounds and batch >= 1, got {rounds} and {options.batch}")
    predicted = audit(uris, options)
    measured = tuple(_measure_group(group, predicted, rounds=rounds, seed=seed) for group in predicted.groups)
    return BenchReport(audit=predicted, groups=measured, rounds=rounds)


def _measure_group(group: GroupAudit, predicted: AuditReport, *, rounds: int, seed: int) -> GroupBench:
    batch = predicted.options.batch
    requests = _requests(group, predicted.options, num=rounds + _WARM_UP, seed=seed)
    with BoxReader(cache=0, threads=predicted.threads) as reader:
        out = np.zeros((batch, *requests[0].shape), dtype=requests[0].dtype)
        read = [_read(reader, request, out) for request in requests]
    timed = read[_WARM_UP:]
    num_crops = batch * rounds
    fast, slow = (sum(getattr(one.report, name) for one in timed) for name in ("fast_chunks", "slow_chunks"))
    return GroupBench(
        predicted=group,
        batch=batch,
        first_s=read[0].wall_s,
        plan_s=statistics.median(one.plan_s for one in timed),
        wall_s=tuple(one.wall_s for one in timed),
        cpu_s=tuple(one.cpu_s for one in timed),
        chunks=sum(one.plan.num_chunks for one in timed) / num_crops,
        read_bytes=sum(one.plan.read_bytes for one in timed) / num_crops,
        decode_bytes=sum(one.plan.decode_bytes for one in timed) / num_crops,
        fast_share=fast / max(fast + slow, 1),
        bottleneck=_bottleneck(group, timed, predicted),
    )


def _requests(group: GroupAudit, options: AuditOptions, *, num: int, seed: int) -> list[BoxRequest]:
    """Return one request for each batch, with origins as in the audit: uniform, or on the chunk grid."""
    rng = np.random.default_rng(seed)
    metas = tuple(fitting.meta for fitting in group.fittings)
    shapes = np.array([meta.shape for meta in metas])
    crop = np.minimum(group.fittings[0].crop, shapes.min(axis=0))
    made = []
    for _ in range(num):
        which = rng.integers(0, len(metas), options.batch)
        starts = rng.integers(0, shapes[which] - crop + 1)
        if options.aligned:
            starts -= starts % np.array(metas[0].chunks)
        made.append(
            BoxRequest(
                arrays=metas,
                which=which,
                starts=starts,
                shape=tuple(crop.tolist()),
                dtype=options.dtype or metas[0].dtype,
            )
        )
    return made


def _read(reader: BoxReader, request: BoxRequest, out: NDArray) -> _Round:
    begun, spent = time.perf_counter(), time.process_time()
    plan = reader.plan(request)
    plan_s = time.perf_counter() - begun
    [report] = reader.read([(plan, out)])
    if report.errors:
        raise report.errors[0].error
    wall_s = time.perf_counter() - begun
    return _Round(plan=plan, report=report, plan_s=plan_s, wall_s=wall_s, cpu_s=time.process_time() - spent)


def _bottleneck(group: GroupAudit, timed: Sequence[_Round], predicted: AuditReport) -> str:
    """Return the bottleneck of a batch: storage if the cores are idle, else the largest part of the CPU time."""
    cpu_s = statistics.median(one.cpu_s for one in timed)
    wall_s = statistics.median(one.wall_s for one in timed)
    plan_s = statistics.median(one.plan_s for one in timed)
    slow = sum(one.report.slow_chunks for one in timed)
    busy = cpu_s / (wall_s * predicted.threads)
    if slow and not sum(one.report.fast_chunks for one in timed):
        return f"zarr-python decodes these arrays ({group.fittings[0].meta.codec.why}): they have no fast path"
    if busy < 0.6:
        return (
            f"the cores are busy {busy:.0%} of the time: storage or other work on this machine limits. Run again (the "
            "page cache is warm then); if it is faster, storage is the limit"
        )
    if plan_s > 0.3 * wall_s:
        return f"planning takes {plan_s / wall_s:.0%} of the time: the chunks are small; write larger ones"
    return _WORDS[_largest_part(group, predicted)].format(codec=group.codec, waste=group.cost.decode_waste)


_WORDS = {
    "decode": "decoding {codec}: {waste:.1f} bytes are decoded for each requested byte; more cores, "
    'align="chunk", chunks that fit the crop or a faster codec help',
    "read": "copying encoded bytes out of the page cache; smaller chunks or a codec that compresses help",
    "cast": "casting into the batch; a narrower dtype (bfloat16, or the stored one) moves fewer bytes",
    "chunks": "work per chunk, whatever its size: the chunks are small; write larger ones",
}


def _largest_part(group: GroupAudit, predicted: AuditReport) -> str:
    """Return the largest part of the CPU time, by the table of speeds."""
    cost, rates, meta = group.cost, predicted.rates, group.fittings[0].meta
    parts = {
        "decode": cost.decode_bytes / rates.decode_bytes_per_s(group.codec, fast=True),
        "read": (cost.read_bytes or 0.0) / rates.read_bytes_per_s,
        "cast": cost.asked_bytes / meta.dtype.itemsize * rates.cast_s,
        "chunks": cost.chunks_in_batch * rates.chunk_s,
    }
    return max(parts, key=parts.__getitem__)


def keep_rates(report: BenchReport) -> Path:
    """Save the decoding speed of each group that our own decoders read; return the file."""
    own = [group for group in report.groups if group.fast_share == 1]
    return save_rates({group.predicted.codec: group.decode_rate(report.audit.rates) for group in own})
