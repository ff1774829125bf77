"""`rankwise doctor`: does this machine, or this job, have what distributed training needs?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

__all__ = ["doctor_command"]


def doctor_command(
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the probe where nobody launched this one.")] = 2,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="What a probe has to meet and finish.")
    ] = 60.0,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="'STORE --crop Z,Y,X'", help="Also measure how fast this is read, by `rankwise data bench`."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check variables, host, devices, ranks, collectives and data; under a launcher all ranks are compared.

    Each check is pass, warn, fail or not run, with what was seen and the mend. No training script is needed.
    """
    from rankwise.diagnose.doctor import examine, exit_code, render

    checks, is_main = examine(ranks=ranks, deadline_s=timeout, data=data)
    if is_main:
        print(json.dumps([asdict(check) for check in checks], indent=1) if as_json else render(checks))
    raise typer.Exit(exit_code(checks))
