"""`rankwise profile`: where the time of a step goes, which rank the others wait for, and what helps."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.diagnose.profile import Profile, Script

__all__ = ["profile_command"]


def profile_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT|FOLDER", help="A script, then its arguments; or a folder of traces, such as RUN/traces."
        ),
    ],
    nproc: Annotated[int, typer.Option("--nproc", metavar="N", min=1, help="Ranks.")] = 2,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps that are recorded.")] = 20,
    skip: Annotated[int, typer.Option(metavar="N", min=1, help="Steps before them.")] = 5,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory that gets traces/ and profile.json. Default: runs/<script>."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING=A,B",
            help="Also run with each value of bucket_mb, static_graph, find_unused or bucket_view.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each value of the sweep.")] = 3,
    to_end: Annotated[bool, typer.Option("--to-end", help="Let the script go on when all is recorded.")] = False,
    num_threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Threads of each rank.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print profile.json.")] = False,
) -> None:
    """Say where the time of each step goes on each rank: data, compute, communication, waiting for slower ranks."""
    from rankwise.diagnose.profile import Script, profile_script, profile_traces
    from rankwise.diagnose.profile.table import profile_text

    place = Path(words[0])
    swept = None if sweep is None else _parse_sweep(sweep)
    if place.is_dir():
        if len(words) > 1 or sweep is not None:
            raise ConfigError(f"{words[0]} is a folder of traces: arguments and --sweep want a script")
        folder = run_dir or (place.parent if place.name == "traces" else place)
        profile = profile_traces(place)
    elif place.is_file():
        folder = run_dir or Path("runs") / place.stem
        script = Script(path=words[0], args=tuple(words[1:]), num_threads=num_threads)
        profile = profile_script(script, num_ranks=nproc, steps=steps, skip=skip, to_end=to_end, folder=folder)
        if swept is not None:
            _sweep(profile, script, swept, nproc=nproc, steps=steps, skip=skip, repeats=repeats)
    else:
        raise ConfigError(f"no script and no folder {words[0]!r} in {Path.cwd()}")
    profile.save(folder / "profile.json")
    facts = profile.to_json()
    print(json.dumps(facts, indent=1) if as_json else f"{profile_text(facts)}\n\nsaved as {folder / 'profile.json'}")


def _parse_sweep(text: str) -> tuple[str, list[float]]:
    setting, _, listed = text.partition("=")
    try:
        return setting, [float(word) for word in listed.split(",")]
    except ValueError:
        raise ConfigError(f"--sweep wants a setting and values such as bucket_mb=1,5,25; got {text!r}") from None


def _sweep(
    profile: Profile, script: Script, swept: tuple[str, list[float]], *, nproc: int, steps: int, skip: int, repeats: int
) -> None:
    from rankwise.diagnose.profile import sweep_setting

    with tempfile.TemporaryDirectory(prefix="rankwise-sweep-") as scratch:
        profile.sweep = sweep_setting(
            script,
            swept[0],
            swept[1],
            num_ranks=nproc,
            steps=steps,
            skip=skip,
            repeats=repeats,
            folder=Path(scratch),
        )
