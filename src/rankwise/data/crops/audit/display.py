"""Audits and measurements as tables and as facts for JSON."""

from __future__ import annotations

import statistics
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from rankwise.data.contract import JSON
from rankwise.data.crops.audit.judgement import AuditReport, GroupAudit, shape_text
from rankwise.data.crops.audit.measurement import BenchReport, GroupBench
from rankwise.data.crops.audit.stores import num_files

_MIB = 2**20
_SKIPPED_SHOWN = 5
_ARRAYS_SHOWN = 3


def show_audit(report: AuditReport, console: Console) -> None:
    """Print a table for each group of arrays with advice and warnings, and the basis of the numbers."""
    options = report.options
    where = "on the grid of chunks" if options.aligned else "anywhere"
    dtype = options.dtype.name if options.dtype else "the stored dtype"
    _say(console, f"crops of {shape_text(options.crop)} {where}, {options.batch} per batch, as {dtype}")
    for group in report.groups:
        table = Table(title=group_title(group), title_justify="left", show_header=False, min_width=60)
        table.add_column("what")
        table.add_column("mean", justify="right")
        table.add_column("note", style="dim")
        for row in _rows(group):
            table.add_row(*row)
        console.print(table)
        named = [fitting.name for fitting in group.fittings[:_ARRAYS_SHOWN]]
        more = len(group.fittings) - len(named)
        named += [f"and {more} more, which --json lists"] * (more > 0)
        _say(console, f"arrays: {', '.join(named)}")
        for word, lines in (("warning", group.warnings), ("advice", group.advice)):
            for line in lines:
                _say(console, f"{word}: {line}")
    for line in report.skipped[:_SKIPPED_SHOWN]:
        _say(console, f"skipped: {line}")
    if len(report.skipped) > _SKIPPED_SHOWN:
        _say(console, f"skipped: {len(report.skipped) - _SKIPPED_SHOWN} more, which --json lists")
    _say(
        console,
        f"crops/s is an estimate: {report.threads} threads, a warm page cache, speeds from the {report.rates.origin}",
    )


def group_title(group: GroupAudit) -> str:
    """Return a one-line description of a group."""
    meta, number = group.fittings[0].meta, len(group.fittings)
    chunk = f"chunk {shape_text(meta.chunks)} ({meta.chunk_bytes / 1024:.0f} KiB)"
    shard = f"shard {shape_text(meta.files)}" if meta.sharded else "no shards"
    level = "" if group.fittings[0].level is None else f"level {group.fittings[0].level}: "
    return f"{level}{number} x {meta.dtype.name} {group.codec}, {chunk}, {shard}"


def _rows(group: GroupAudit) -> list[tuple[str, str, str]]:
    cost = group.cost
    unknown = ("unknown", group.sizes_from)
    read = (
        unknown
        if cost.read_bytes is None
        else (f"{cost.read_bytes / _MIB:.2f} MiB", f"whole pages; from {group.sizes_from}")
    )
    again = cost.read_amplification
    amplification = unknown if again is None else (f"{again:.2f}", "bytes read / bytes of the crop, as stored")
    asked = f"{cost.asked_bytes / _MIB:.2f} MiB"
    return [
        ("crop", shape_text(group.fittings[0].crop), f"{asked}, as stored"),
        ("chunks per crop", f"{cost.chunks:.1f}", f"{cost.aligned_chunks:.0f} on the grid of chunks"),
        ("different chunks", f"{cost.chunks_in_batch:.1f}", "crops of a batch share the others"),
        ("files per crop", f"{cost.files:.2f}", f"at least {cost.fewest_files:.0f}; {group.num_files:,} in all"),
        ("decoded per crop", f"{cost.decode_bytes / _MIB:.2f} MiB", "chunks that a batch shares count once"),
        ("decode waste", f"{cost.decode_waste:.2f}", "bytes decoded / bytes of the crop, as stored"),
        ("read per crop", *read),
        ("read amplification", *amplification),
        ("memory of a batch", f"{group.batch_bytes / _MIB:.0f} MiB", ""),
        ("crops/s", f"{group.crops_per_s:.0f}", f"estimate; {cost.cpu_s * 1e3:.1f} ms on one core"),
    ]


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def audit_facts(report: AuditReport) -> dict[str, JSON]:
    """Return all facts of an audit."""
    return {
        "crop": list(report.options.crop),
        "channels": report.options.channels,
        "dtype": report.options.dtype.name if report.options.dtype else "native",
        "batch": report.options.batch,
        "aligned": report.options.aligned,
        "threads": report.threads,
        "rates": report.rates.origin,
        "groups": [_group_facts(group) for group in report.groups],
        "skipped": list(report.skipped),
    }


def _group_facts(group: GroupAudit) -> dict[str, JSON]:
    meta = group.fittings[0].meta
    return {
        "codec": group.codec,
        "fast": meta.codec.kind != "zarr",
        "dtype": meta.dtype.name,
        "chunks": list(meta.chunks),
        "shards": list(meta.files) if meta.sharded else None,
        "chunk_bytes": meta.chunk_bytes,
        "num_arrays": len(group.fittings),
        "num_files": group.num_files,
        "batch_bytes": group.batch_bytes,
        "cost": {
            **asdict(group.cost),
            "decode_waste": group.cost.decode_waste,
            "read_amplification": group.cost.read_amplification,
        },
        "crops_per_s_estimate": group.crops_per_s,
        "sizes": None if group.sizes is None else asdict(group.sizes),
        "sizes_from": group.sizes_from,
        "better_layout": asdict(group.layout),
        "advice": list(group.advice),
        "warnings": list(group.warnings),
        "arrays": [
            {
                "place": fitting.meta.place,
                "level": fitting.level,
                "shape": list(fitting.meta.shape),
                "crop": list(fitting.crop),
                "num_files": num_files(fitting.meta),
            }
            for fitting in group.fittings
        ],
    }


def bench_facts(report: BenchReport) -> dict[str, JSON]:
    """Return all measurements, with the prediction."""
    return {
        "audit": audit_facts(report.audit),
        "rounds": report.rounds,
        "groups": [
            {
                "crops_per_s": group.crops_per_s,
                "first_batch_s": group.first_s,
                "plan_s": group.plan_s,
                "wall_s": list(group.wall_s),
                "cpu_s": list(group.cpu_s),
                "chunks_per_crop": group.chunks,
                "read_bytes_per_crop": group.read_bytes,
                "decode_bytes_per_crop": group.decode_bytes,
                "fast_share": group.fast_share,
                "decode_bytes_per_cpu_s": group.decode_rate(report.audit.rates),
                "bottleneck": group.bottleneck,
            }
            for group in report.groups
        ],
    }


def show_bench(report: BenchReport, console: Console) -> None:
    """Print measured and predicted values for each group, then the bottleneck."""
    for group in report.groups:
        table = Table(title=group_title(group.predicted), title_justify="left")
        for name in ("per crop", "measured", "predicted", "measured / predicted"):
            table.add_column(name, justify="left" if name == "per crop" else "right")
        cost = group.predicted.cost
        cpu_ms = statistics.median(group.cpu_s) / group.batch * 1e3
        read = None if cost.read_bytes is None else cost.read_bytes / _MIB
        rows: list[tuple[str, float, float | None, str]] = [
            ("different chunks", group.chunks, cost.chunks_in_batch, ""),
            ("decoded", group.decode_bytes / _MIB, cost.decode_bytes / _MIB, " MiB"),
            ("read", group.read_bytes / _MIB, read, " MiB"),
            ("CPU time", cpu_ms, cost.cpu_s * 1e3, " ms"),
            ("crops/s", group.crops_per_s, group.predicted.crops_per_s, ""),
        ]
        for name, measured, predicted, unit in rows:
            known = predicted is not None
            table.add_row(
                name,
                f"{measured:.2f}{unit}",
                f"{predicted:.2f}{unit}" if known else "unknown",
                f"{measured / predicted:.2f}" if predicted else "-",
            )
        console.print(table)
        _say(console, _spread(group))
    for group in report.groups:
        place = f"{group_title(group.predicted)}: " if len(report.groups) > 1 else ""
        _say(console, f"bottleneck: {place}{group.bottleneck}")


def _spread(group: GroupBench) -> str:
    walls = sorted(group.batch / wall for wall in group.wall_s)
    low, high = walls[len(walls) // 10], walls[-1 - len(walls) // 10]
    path = "our own decoders" if group.fast_share == 1 else f"our own decoders for {group.fast_share:.0%} of the chunks"
    return (
        f"crops/s from {low:.1f} to {high:.1f} (p10 to p90 of {len(walls)} batches of {group.batch}); planning "
        f"{group.plan_s * 1e3:.2f} ms per batch; first batch {group.first_s:.2f} s; {path}"
    )
