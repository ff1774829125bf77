"""`rankwise watch`: where every rank of a running job stands, and who holds the others up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.diagnose.watch.evidence import Evidence

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
        str | None, typer.Option("--slurm", metavar="JOB", help="Ask all nodes of this job of Slurm instead.")
    ] = None,
    list_jobs: Annotated[bool, typer.Option("--list", help="List the jobs that can be looked at here.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that is known as JSON.")] = False,
) -> None:
    """Look at a running job once: every rank's stacks and last collectives, and who holds the others up."""
    from rankwise.diagnose.watch.evidence import report
    from rankwise.diagnose.watch.running import look_at, running_jobs

    if list_jobs:
        for found in running_jobs():
            print(f"{found.launcher}  {len(found.ranks)} ranks  quiet for {found.idle_s:.0f} s  {found.command[:100]}")
        return
    evidence = _ask_nodes(slurm) if slurm is not None else look_at(job)
    verdict, text = report(evidence, f"quiet for {evidence.idle_s:.0f} s")
    print(json.dumps({"verdict": asdict(verdict), **json.loads(evidence.to_json())}) if as_json else text)


def _ask_nodes(job: str) -> Evidence:
    """Run this command on every node of a job of Slurm, and put the answers together."""
    if shutil.which("srun") is None:
        raise ConfigError("--slurm needs srun: run this where Slurm's commands are, for example on the login node")
    command = ["srun", "--overlap", "--jobid", job, "--ntasks-per-node", "1", "--quiet"]
    done = subprocess.run(  # noqa: S603
        [*command, sys.executable, "-m", "rankwise", "watch", "--json"], capture_output=True, text=True, check=False
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not answers:
        raise ConfigError(f"no node of job {job} has answered: {done.stderr.strip() or 'no output'}")
    merged = _evidence(answers[0])
    for answer in answers[1:]:
        merged = merged.with_others(_evidence(answer))
    if done.returncode:
        print(f"not all nodes have answered: {done.stderr.strip()}", file=sys.stderr)
    return merged


def _evidence(answer: str) -> Evidence:
    from rankwise.diagnose.watch.evidence import Evidence

    found: dict[str, Any] = json.loads(answer)
    found.pop("verdict")
    return Evidence.from_json(json.dumps(found))
