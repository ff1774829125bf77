"""`rankwise watch`: where every rank of a running job is, and which rank blocks the others."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rankwise.errors import ConfigError

__all__ = ["watch_command"]


def watch_command(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]",
            help="Process id of the launcher or of a rank, or a run directory; not needed where one job runs.",
        ),
    ] = "",
    slurm: Annotated[
        str | None,
        typer.Option("--slurm", metavar="JOB[.STEP]", help="Ask all nodes of this job of Slurm instead."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1.0, help="How long to wait for the nodes (--slurm).")
    ] = 60.0,
    list_jobs: Annotated[bool, typer.Option("--list", help="List the jobs that can be looked at here.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that is known as JSON.")] = False,
) -> None:
    """Look at a running job once: every rank's stacks and last collectives, and who holds the others up."""
    from rankwise.diagnose.watch.evidence import report
    from rankwise.diagnose.watch.jobs import look_at, running_jobs

    if list_jobs:
        for found in running_jobs():
            print(f"{found.launcher}  {len(found.ranks)} ranks  quiet for {found.idle_s:.0f} s  {found.command[:100]}")
        return
    if slurm is None:
        evidence, silent = look_at(job), dict[str, str]()
    elif job:
        raise ConfigError(f"give either a job of this machine ({job!r}) or --slurm {slurm}, not both")
    else:
        from rankwise.diagnose.watch.slurm import look_at_slurm

        evidence, silent = look_at_slurm(slurm, timeout_s)
    verdict, text = report(evidence, f"quiet for {evidence.idle_s:.0f} s")
    text += "".join(f"\nnode {node}: {why}" for node, why in silent.items())
    known = {"verdict": asdict(verdict), **json.loads(evidence.to_json()), "silent_nodes": silent}
    print(json.dumps(known) if as_json else text)
