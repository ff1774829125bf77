"""`rankwise rows verify`: check a collection against its checksums."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

__all__ = ["verify_command"]


def verify_command(
    uri: Annotated[str, typer.Argument(metavar="URI", help="A collection that rankwise wrote.")],
    sources: Annotated[
        bool, typer.Option("--sources", help="Also read the sources again, and compare every row with its source.")
    ] = False,
) -> None:
    """Compare every array with its checksum, and every row with the note of where it comes from.

    Exit codes: 0 = all is well; 1 = something differs; 2 = wrong usage.
    """
    from rankwise.data.rows import verify_rows

    show = sys.stderr.isatty()
    problems = verify_rows(
        uri, sources=sources, shown=lambda place: print(f"reading {place}", file=sys.stderr) if show else None
    )
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    print(f"{uri} is what was written" + ", and its rows are those of their sources" * sources)
