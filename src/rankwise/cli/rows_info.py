"""`rankwise rows info`: the content of AnnData stores, and the cost of reading rows."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["info_command"]


def info_command(
    uri: Annotated[str, typer.Argument(metavar="URI", help="An AnnData Zarr store, or a collection.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what a store or collection holds, what rows of it cost, and what a conversion would buy. Reads no data."""
    from rankwise.data.rows.inspecting import describe_rows, text_of_rows

    facts = describe_rows(uri)
    print(json.dumps(facts, indent=1) if as_json else text_of_rows(facts))
