"""`rankwise scaling`: how the throughput of a script grows with the number of ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rankwise.errors import ConfigError

__all__ = ["scaling_command"]


def scaling_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="A script, then its arguments; {ranks} and {dir} are filled in."),
    ],
    ranks: Annotated[
        str, typer.Option(metavar="1,2,4", help="Numbers of ranks; the first is the reference.")
    ] = "1,2,4",
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each; verdicts want three or more.")] = 3,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps of a run that are timed.")] = 20,
    skip: Annotated[int, typer.Option(metavar="N", min=1, help="Steps before them.")] = 5,
    mode: Annotated[
        str | None, typer.Option(metavar="strong|weak", help="How the batch grows, where it cannot be seen.")
    ] = None,
    min_efficiency: Annotated[
        float | None, typer.Option(metavar="E", help="End with code 1 if a size certainly has less.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Gets scaling.json. Default: runs/<script>.")
    ] = None,
    num_threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Threads of each rank.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print scaling.json.")] = False,
) -> None:
    """Run a script at several numbers of ranks, repeatedly; say how throughput grows, and what the loss is made of."""
    from rankwise.diagnose.profile import Script, measure_scaling
    from rankwise.diagnose.profile.table import scaling_text

    try:
        sizes = [int(word) for word in ranks.split(",")]
    except ValueError:
        raise ConfigError(f"--ranks wants numbers such as 1,2,4; got {ranks!r}") from None
    if not Path(words[0]).is_file():
        raise ConfigError(f"no script {words[0]!r} in {Path.cwd()}")
    if mode not in {None, "strong", "weak"}:
        raise ConfigError(f"--mode is strong or weak; got {mode!r}")
    given: Literal["strong", "weak"] | None = None if mode is None else "strong" if mode == "strong" else "weak"
    scaling = measure_scaling(
        Script(path=words[0], args=tuple(words[1:]), num_threads=num_threads),
        ranks=sizes,
        repeats=repeats,
        steps=steps,
        skip=skip,
        mode=given,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    path = (run_dir or Path("runs") / Path(words[0]).stem) / "scaling.json"
    scaling.save(path)
    facts = scaling.to_json()
    print(json.dumps(facts, indent=1) if as_json else f"{scaling_text(facts)}\n\nsaved as {path}")
    sys.exit(int(scaling.falls_below(min_efficiency)))
