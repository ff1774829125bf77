"""`rankwise verify`, `profile` and `scaling`: commands that run a script to learn something about it."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from rankwise.cli.run import path_option
from rankwise.errors import ConfigError, RunDirError

if TYPE_CHECKING:
    from rankwise.diagnose.profile import Profile, Script


class ScriptCommand(TyperCommand):
    """A command that runs a script: what follows the script goes to it, as with torchrun."""

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; warn of own options after the script, unless a -- or the script's text shows that they are meant."""
        given = list(args)
        left = super().parse_args(ctx, args)
        script, *words = ctx.params.get("words") or [""]
        own = {name for param in self.get_params(ctx) for name in param.opts if name.startswith("-")}
        own &= {word.partition("=")[0] for word in takewhile(lambda word: word != "--", words)}
        if not own or not Path(script).is_file() or given[: len(given) - len(words)][-2:-1] == ["--"]:
            return left
        text = Path(script).read_text(errors="replace")
        lost = [name for name in sorted(own) if not re.search(rf"{name}(?![\w-])", text)]
        if lost:
            print(
                f"rankwise: warning: {', '.join(lost)} after {script} is an argument of the script: options of "
                f"{ctx.command_path} come before it. If it is meant so: {ctx.command_path} -- {script} {lost[0]} ...",
                file=sys.stderr,
            )
        return left


def verify_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT", help="Script and its arguments; {ranks} and {dir} are replaced by their values."
        ),
    ],
    ranks: Annotated[
        str, typer.Option(metavar="1,2,3", help="Numbers of ranks to compare; the first is the reference.")
    ] = "1,2,3",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Number of optimizer steps to compare.")] = 20,
    kill: Annotated[
        bool, typer.Option("--kill", help="Also kill a rank, restart the run, and compare the remaining steps.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, metavar="R", help="Relative difference that counts as rounding. Default: by the dtype."),
    ] = None,
    out: Annotated[Path | None, path_option(metavar="DIR", help="Keep the runs and their records in DIR.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a script with several numbers of ranks; show where the runs first differ, and why."""
    from rankwise.diagnose import verify_script

    sizes = _parse_ranks(ranks, "1,2,3")
    _check_script(words[0])
    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {str(out)!r} is not empty: give a new folder")
    with tempfile.TemporaryDirectory(prefix="rankwise-verify-") as scratch:
        folder = Path(scratch) if out is None else out.resolve()
        verdict = verify_script(
            words[0], words[1:], ranks=sizes, steps=steps, kill=kill, tolerance=tolerance, folder=folder
        )
    print(json.dumps(verdict.to_json(), indent=1) if as_json else verdict)
    sys.exit(verdict.exitcode)


def profile_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT|FOLDER", help="Script and its arguments, or a folder of traces, such as RUN/traces."
        ),
    ],
    nproc: Annotated[int, typer.Option("--nproc", metavar="N", min=1, help="Number of ranks.")] = 2,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Number of steps to record.")] = 20,
    skip: Annotated[int, typer.Option(metavar="N", min=1, help="Number of steps to skip before these.")] = 5,
    run_dir: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help="Run directory: traces/ and profile.json are stored there. Default: runs/<script>.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING=A,B",
            help="Also run the script with each value of bucket_mb, static_graph, find_unused or bucket_view.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Number of runs for each value of --sweep.")] = 3,
    to_end: Annotated[
        bool, typer.Option("--to-end", help="Let the script run to its end after the recorded steps.")
    ] = False,
    num_threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of threads per rank.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure the time of each step on each rank: data, compute, communication, waiting for slower ranks."""
    from rankwise.diagnose.profile import Script, profile_script, profile_traces
    from rankwise.diagnose.profile.table import profile_text

    place = Path(words[0])
    swept = None if sweep is None else _parse_sweep(sweep, repeats)
    if words[0] and place.is_dir():
        if len(words) > 1 or sweep is not None:
            raise ConfigError(f"{words[0]} is a folder of traces: --sweep, and words after it, are only for scripts")
        folder = run_dir or (place.parent if place.name == "traces" else place)
        profile = profile_traces(place)
    elif place.is_file():
        folder = _locked_folder(run_dir, place, "profile")
        script = Script(path=words[0], args=tuple(words[1:]), num_threads=num_threads)
        profile = profile_script(script, num_ranks=nproc, steps=steps, skip=skip, to_end=to_end, folder=folder)
        if swept is not None:
            profile.save(folder / "profile.json")  # kept if a run of the sweep fails
            _sweep(profile, script, swept, nproc=nproc, steps=steps, skip=skip, repeats=repeats)
    else:
        raise ConfigError(f"no script or folder {words[0]!r} in {Path.cwd()}")
    profile.save(folder / "profile.json")
    facts = profile.to_json()
    print(json.dumps(facts, indent=1) if as_json else f"{profile_text(facts)}\n\nsaved as {folder / 'profile.json'}")


def _locked_folder(run_dir: Path | None, script: Path, kind: str) -> Path:
    """Return the run directory for a profile or a scaling measurement, locked until this process ends.

    Of two at once the last would replace the result of the other, and the traces of one lie beside the other's table.

    Raises:
        RunDirError: another process writes there, or it is a file.
    """
    from rankwise._process.lock import FileLock

    folder = run_dir or Path("runs") / script.stem
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise RunDirError(
            f"the run directory must be a folder, but {folder} is, or lies below, a file: choose another with --run-dir"
        ) from error
    FileLock(folder / f"{kind}.lock", what=f"the {kind} in {folder}").acquire(wait_s=0)
    return folder


def _parse_ranks(text: str, example: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--ranks must be numbers separated by commas, such as {example}, got {text!r}") from None


def _check_script(path: str) -> None:
    if not Path(path).is_file():
        raise ConfigError(f"no script {path!r} in {Path.cwd()}")


def _parse_sweep(text: str, repeats: int) -> tuple[str, list[float]]:
    from rankwise.diagnose.profile import check_sweep

    setting, _, listed = text.partition("=")
    try:
        values = [float(word) for word in listed.split(",")]
    except ValueError:
        raise ConfigError(f"--sweep must be a setting and values, such as bucket_mb=1,5,25, got {text!r}") from None
    check_sweep(setting, values, repeats)
    return setting, values


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


def scaling_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT", help="Script and its arguments; {ranks} and {dir} are replaced by their values."
        ),
    ],
    ranks: Annotated[
        str, typer.Option(metavar="1,2,4", help="Numbers of ranks to compare; the first is the reference.")
    ] = "1,2,4",
    repeats: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Number of runs for each number of ranks; a verdict needs at least 3."),
    ] = 3,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Number of timed steps per run.")] = 20,
    skip: Annotated[int, typer.Option(metavar="N", min=1, help="Number of steps to skip before these.")] = 5,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="strong|weak",
            help="Scaling mode, if it cannot be detected. strong: fixed global batch; weak: fixed batch per rank.",
        ),
    ] = None,
    min_efficiency: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="E", help="Exit with 1 if an efficiency is significantly below E (between 0 and 1)."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        path_option(metavar="DIR", help="Run directory: scaling.json is stored there. Default: runs/<script>."),
    ] = None,
    num_threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of threads per rank.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a script several times with each number of ranks; measure how throughput scales, and where time is lost."""
    from rankwise.diagnose.profile import Script, measure_scaling
    from rankwise.diagnose.profile.table import scaling_text

    sizes = _parse_ranks(ranks, "1,2,4")
    _check_script(words[0])
    if mode not in {None, "strong", "weak"}:
        raise ConfigError(f"--mode must be strong or weak, got {mode!r}")
    given: Literal["strong", "weak"] | None = None if mode is None else "strong" if mode == "strong" else "weak"
    path = _locked_folder(run_dir, Path(words[0]), "scaling") / "scaling.json"
    scaling = measure_scaling(
        Script(path=words[0], args=tuple(words[1:]), num_threads=num_threads),
        ranks=sizes,
        repeats=repeats,
        steps=steps,
        skip=skip,
        mode=given,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    scaling.save(path)
    facts = scaling.to_json()
    print(json.dumps(facts, indent=1) if as_json else f"{scaling_text(facts)}\n\nsaved as {path}")
    sys.exit(int(scaling.falls_below(min_efficiency)))
