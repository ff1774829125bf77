"""`rankwise report`: write one HTML page about one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report_command"]


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; several stand side by side.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The page. Default: report.html in the first run."),
    ] = None,
    lint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of `rankwise lint`. Default: RUN/lint.json.")
    ] = None,
    doctor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of `rankwise doctor`. Default: RUN/doctor.json.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page about a run: curves, time, restarts, findings, checkpoints. Runs nothing."""
    from rankwise.diagnose.report import write_report

    page = out if out is not None else runs[0] / "report.html"
    found = write_report(runs, page, lint=lint, doctor=doctor)
    for run in found:
        for note in run.notes:
            typer.echo(f"{run.name}: {note}", err=True)
    print(page)
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
