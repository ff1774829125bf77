"""A measurement as plain values for JSON, and as a table for people."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.table import Table

from rankwise.data.contract import JSON
from rankwise.data.crops.audit.facts import audit_facts
from rankwise.data.crops.audit.measuring import BenchReport, GroupBench
from rankwise.data.crops.audit.showing import group_title

__all__ = ["bench_facts", "show_bench"]

_MIB = 2**20


def bench_facts(report: BenchReport) -> dict[str, JSON]:
    """Return everything that was measured, with the prediction."""
    batch = report.options.audit.batch
    return {
        "audit": audit_facts(report.audit),
        "rounds": report.options.rounds,
        "groups": [
            {
                "crops_per_s": group.crops_per_s(batch),
                "first_batch_s": group.first_s,
                "plan_s": group.plan_s,
                "wall_s": list(group.wall_s),
                "cpu_s": list(group.cpu_s),
                "chunks_per_crop": group.chunks,
                "read_bytes_per_crop": group.read_bytes,
                "decode_bytes_per_crop": group.decode_bytes,
                "fast_share": group.fast_share,
                "decode_bytes_per_cpu_s": group.decode_rate(batch, report.audit.rates),
                "bottleneck": group.bottleneck,
            }
            for group in report.groups
        ],
    }


def show_bench(report: BenchReport, console: Console) -> None:
    """Print measured beside predicted for each group, and end with what it waits for."""
    options = report.options.audit
    for group in report.groups:
        table = Table(title=group_title(group.predicted), title_justify="left")
        for name in ("per crop", "measured", "predicted", "measured / predicted"):
            table.add_column(name, justify="left" if name == "per crop" else "right")
        for name, measured, predicted, unit in _rows(group, options.batch):
            known = predicted is not None
            table.add_row(
                name,
                f"{measured:.2f}{unit}",
                f"{predicted:.2f}{unit}" if known else "unknown",
                f"{measured / predicted:.2f}" if predicted else "-",
            )
        console.print(table)
        console.print(_spread(group, options.batch), highlight=False, soft_wrap=True)
    for group in report.groups:
        place = f"{group_title(group.predicted)}: " if len(report.groups) > 1 else ""
        console.print(f"bottleneck: {place}{group.bottleneck}", highlight=False, markup=False, soft_wrap=True)


def _rows(group: GroupBench, batch: int) -> list[tuple[str, float, float | None, str]]:
    cost = group.predicted.cost
    cpu_ms = statistics.median(group.cpu_s) / batch * 1e3
    read = None if cost.read_bytes is None else cost.read_bytes / _MIB
    return [
        ("different chunks", group.chunks, cost.chunks_in_batch, ""),
        ("decoded", group.decode_bytes / _MIB, cost.decode_bytes / _MIB, " MiB"),
        ("read", group.read_bytes / _MIB, read, " MiB"),
        ("CPU time", cpu_ms, cost.cpu_s * 1e3, " ms"),
        ("crops/s", group.crops_per_s(batch), group.predicted.crops_per_s, ""),
    ]


def _spread(group: GroupBench, batch: int) -> str:
    walls = sorted(batch / wall for wall in group.wall_s)
    low, high = walls[len(walls) // 10], walls[-1 - len(walls) // 10]
    path = "our own decoders" if group.fast_share == 1 else f"our own decoders for {group.fast_share:.0%} of the chunks"
    return (
        f"crops/s from {low:.1f} to {high:.1f} (p10 to p90 of {len(walls)} batches of {batch}); planning "
        f"{group.plan_s * 1e3:.2f} ms per batch; first batch {group.first_s:.2f} s; {path}"
    )
