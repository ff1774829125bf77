"""`rankwise data index`: find every image and array below some URIs, and write a catalogue of them."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from rankwise.data.store.catalogue import Catalogue

__all__ = ["EXAMPLES", "index_command"]

EXAMPLES = (
    "Examples:  rankwise data index /data/screen.zarr -o screen.idx  |  "
    "rankwise data index /data/* s3://bucket/more --workers 32 --skip-bad --json -o all.idx"
)
_MOST = 20  # unreadable entries that are printed; the catalogue and --json have all


def index_command(
    uris: Annotated[
        list[str],
        typer.Argument(metavar="URI", help="Arrays, groups, images, plates, or plain folders that hold some."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="IDX", help="File for the catalogue.")],
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Threads that read; more help where storage answers slowly.")
    ] = 8,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Write the catalogue although some things could not be read.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Write a catalogue of every image and array below some URIs, so that they open without touching their stores.

    Exit codes: 0 = written; 1 = something could not be read (nothing is written without --skip-bad), or nothing was
    found; 2 = wrong usage.
    """
    from rankwise.cli.data_summary import summarize, text_of
    from rankwise.data.store.catalogue import build_catalogue

    with _progress() as show:
        catalogue = build_catalogue(uris, workers=workers, progress=show)
    failed = not len(catalogue.arrays()) or (bool(catalogue.bad) and not skip_bad)
    written = None if failed else catalogue.save(output)
    summary = summarize(catalogue, output=str(output), written_bytes=written)
    print(json.dumps(summary, indent=2) if as_json else text_of(summary))
    _complain(catalogue, written=written is not None)
    if failed:
        sys.exit(1)


def _complain(catalogue: Catalogue, *, written: bool) -> None:
    """Print to stderr what could not be read, and what to do."""
    for place, reason in list(catalogue.bad.items())[:_MOST]:
        print(f"not read: {place}: {reason}", file=sys.stderr)
    if len(catalogue.bad) > _MOST:
        print(f"... and {len(catalogue.bad) - _MOST} more (--json lists all)", file=sys.stderr)
    if catalogue.bad and not written:
        print("nothing was written; mend or leave these out, or add --skip-bad", file=sys.stderr)
    elif not catalogue.arrays():
        print("no Zarr array was found; nothing was written", file=sys.stderr)


def _progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Return a counter line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    return _Spinner()


class _Spinner:
    """Shows on stderr how many entries were found and how many are left."""

    def __init__(self) -> None:
        from rich.console import Console

        self._status: Any = Console(stderr=True).status("looking ...")

    def __enter__(self) -> Callable[[int, int], None]:
        self._status.start()
        return self._show

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def _show(self, found: int, pending: int) -> None:
        self._status.update(f"{found} images found, {pending} places to look at")
