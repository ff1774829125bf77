"""`rankwise data bench`: measure how fast random crops of stored arrays are read, and compare with the audit."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rankwise.cli.data_words import parse_align, parse_dtype, parse_extents

__all__ = ["bench_command"]


def bench_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    uris: Annotated[
        list[str], typer.Argument(metavar="URI...", help="Arrays, images, plates, folders of them, or catalogues.")
    ],
    crop: Annotated[str, typer.Option(metavar="Z,Y,X", help="Extent of a crop along the last axes but channels.")],
    channels: Annotated[
        int | None, typer.Option(min=1, help="Channels of a crop that does not name their axis; default: all.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the batch; native: as stored.")] = "float32",
    align: Annotated[str, typer.Option(metavar="none|chunk", help="Where origins of crops lie.")] = "none",
    batch: Annotated[int, typer.Option(min=1, help="Crops per batch; a chunk they share is decoded once.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Batches that are timed.")] = 20,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; default: the cores usable here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random origins.")] = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Keep the decoding speeds for the audits of this machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Read random crops of stored arrays, set the cost beside the audit's prediction, and name the bottleneck."""
    from rich.console import Console

    from rankwise.data.crops.audit import AuditOptions, BenchOptions, bench_facts, keep_rates, measure, show_bench

    audit = AuditOptions(
        crop=parse_extents(crop),
        channels=channels,
        dtype=parse_dtype(dtype),
        aligned=parse_align(align),
        batch=batch,
        threads=threads,
    )
    report = measure(uris, BenchOptions(audit=audit, rounds=rounds, seed=seed))
    if as_json:
        print(json.dumps(bench_facts(report), indent=1))
    else:
        show_bench(report, Console())
    if calibrate:
        typer.echo(f"decoding speeds are kept in {keep_rates(report)}", err=True)
