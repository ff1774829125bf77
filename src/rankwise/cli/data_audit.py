"""`rankwise data audit`: predict from metadata what crops of stored arrays cost."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rankwise.cli.data_words import parse_align, parse_dtype, parse_extents

__all__ = ["audit_command"]


def audit_command(  # noqa: PLR0917  (typer's way: a parameter per option)
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
    threads: Annotated[int | None, typer.Option(min=1, help="Cores that decode; default: those usable here.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Files per array whose sizes are looked at; 0: none.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Predict what random crops of stored arrays cost, and say how to store them better. Reads no data."""
    from rich.console import Console

    from rankwise.data.crops.audit import AuditOptions, audit, audit_facts, show_audit

    options = AuditOptions(
        crop=parse_extents(crop),
        channels=channels,
        dtype=parse_dtype(dtype),
        aligned=parse_align(align),
        batch=batch,
        threads=threads,
        sample_files=sample,
    )
    report = audit(uris, options)
    if as_json:
        print(json.dumps(audit_facts(report), indent=1))
    else:
        show_audit(report, Console())
