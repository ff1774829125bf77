"""`rankwise verify`: check that a script trains the same at any number of ranks."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rankwise.errors import ConfigError

__all__ = ["verify_command"]


def verify_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="A script, then its arguments; {ranks} and {dir} are filled in."),
    ],
    ranks: Annotated[
        str, typer.Option(metavar="1,2,3", help="Numbers of ranks; the first is the reference.")
    ] = "1,2,3",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Optimizer steps that are compared.")] = 20,
    kill: Annotated[bool, typer.Option("--kill", help="Also kill a rank, start again, and compare the rest.")] = False,
    tolerance: Annotated[
        float | None, typer.Option(metavar="R", help="Relative difference that is rounding. Default: by the dtype.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the runs and their records there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Run a script at several numbers of ranks and say where they first differ, and why. Exit code 0: nowhere."""
    from rankwise.diagnose import verify_script

    try:
        sizes = [int(word) for word in ranks.split(",")]
    except ValueError:
        raise ConfigError(f"--ranks wants numbers such as 1,2,3; got {ranks!r}") from None
    if not Path(words[0]).is_file():
        raise ConfigError(f"no script {words[0]!r} in {Path.cwd()}")
    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {str(out)!r} holds files; give a new folder")
    with tempfile.TemporaryDirectory(prefix="rankwise-verify-") as scratch:
        folder = Path(scratch) if out is None else out.resolve()
        verdict = verify_script(
            words[0], words[1:], ranks=sizes, steps=steps, kill=kill, tolerance=tolerance, folder=folder
        )
    print(json.dumps(verdict.to_json(), indent=1) if as_json else verdict)
    sys.exit(verdict.exitcode)
