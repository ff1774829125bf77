"""`rankwise rows`: commands about AnnData stores and collections. Each imports the library late."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rankwise.cli.output import plain_warnings
from rankwise.cli.run import path_option, place_argument
from rankwise.errors import ConfigError, LaunchError, RankFailure, RankwiseError

rows_commands = typer.Typer(
    name="rows",
    help="Write, inspect and verify AnnData stores and collections.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXAMPLES = (
    "Examples:  rankwise rows write cells.zarr plate1.h5ad plate2.h5ad --seed 0  |  "
    "rankwise rows write cells.zarr *.h5ad --layer counts --no-x --memory-budget 16GB --ranks 8  |  "
    "srun rankwise rows write cells.zarr *.h5ad"
)

_STOPPED = 130  # exit code after Ctrl-C, as in a shell
_OURS = "rankwise.errors."  # begins the last line of a traceback of one of our errors


@rows_commands.callback()
def _describe() -> None:
    """Write, inspect and verify AnnData stores and collections."""


@rows_commands.command("write", no_args_is_help=True, epilog=_EXAMPLES)
def write_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    out: Annotated[str, place_argument(metavar="OUT", help="Collection to create or extend; its name ends in .zarr.")],
    inputs: Annotated[
        list[str], place_argument(metavar="IN...", help="Inputs: h5ad files, AnnData Zarr stores, other collections.")
    ],
    layer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Layer to write; may be repeated.")] = None,
    obsm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Matrix of obsm to write; may be repeated.")
    ] = None,
    modality: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Modality of MuData inputs; may be repeated, the first provides X."),
    ] = None,
    x: Annotated[bool, typer.Option("--x/--no-x", help="Write X, too, if --layer or --obsm is given.")] = True,
    genes: Annotated[
        Path | None, path_option(metavar="FILE", help="File with the names of the variables to write, one per line.")
    ] = None,
    join: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="Write the variables that any input has (outer), or that all inputs have (inner)."
        ),
    ] = "outer",
    groupby: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of obs by which each dataset is sorted; may be repeated."),
    ] = None,
    rows_per_chunk: Annotated[int, typer.Option(metavar="N", min=1, help="Rows per chunk.")] = 64,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum size of a file: decoded bytes (1GB) or rows (1000).")
    ] = "1GB",
    dataset_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum size of a dataset: decoded bytes (20GB, 250MB) or rows (250).")
    ] = "20GB",
    memory_budget: Annotated[str, typer.Option(metavar="SIZE", help="Memory of each rank for buffered rows.")] = "2GB",
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the shuffle. Default: a random seed, which is recorded.")
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="Write all rows in random order.")] = True,
    align_rows: Annotated[
        bool, typer.Option("--align-rows/--no-align-rows", help="Align chunk edges of CSR matrices to row edges.")
    ] = True,
    reshuffle: Annotated[
        bool, typer.Option("--reshuffle", help="Also rewrite the existing datasets, in one order with the new rows.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of processes on this machine that share the work; the result is the same. Default: 1, or the "
            "ranks of the job step (srun, torchrun, mpirun) in which the command runs.",
        ),
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress",
            help="Show rate and time left; a line every 10 s if stderr is not a terminal. Default: on a terminal.",
        ),
    ] = None,
) -> None:
    """Write shuffled rows to a new or an existing collection. If killed, the collection is unchanged; a repeat resumes.

    Without --layer and --obsm, every matrix that all inputs have is written.
    """
    chosen = [f"layers/{name}" for name in layer or ()] + [f"obsm/{name}" for name in obsm or ()]
    matrices = None if not chosen and x else ["X"] * x + chosen
    options = {
        "matrices": matrices,
        "modalities": modality or None,
        "var_subset": None if genes is None else _lines(genes),
        "join": join,
        "groupby": groupby or None,
        "n_obs_per_chunk": rows_per_chunk,
        "shard_size": shard_size,
        "dataset_size": dataset_size,
        "memory_budget": memory_budget,
        "rng": seed,
        "shuffle": shuffle,
        "align_rows": align_rows,
        "reshuffle": reshuffle,
    }
    try:
        if ranks is None or ranks == 1:
            _write_rank(out, inputs, {**options, "progress": progress})
        else:
            _start_ranks(ranks, out, inputs, options, progress)
    except KeyboardInterrupt:
        from rankwise.data.rows.collection.journal import unfinished_state

        print(f"rankwise: stopped. {unfinished_state(Path(out))}", file=sys.stderr)
        sys.exit(_STOPPED)


@rows_commands.command("info", no_args_is_help=True)
def info_command(
    uri: Annotated[str, place_argument(metavar="URI", help="AnnData Zarr store or collection.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show what a store or collection contains, the cost of its rows, and the gain of a conversion. Reads no data."""
    from rankwise.data.rows.inspection.description import describe_rows, text_of_rows

    facts = describe_rows(uri)
    print(json.dumps(facts, indent=1) if as_json else text_of_rows(facts))


@rows_commands.command("verify", no_args_is_help=True)
def verify_command(
    uri: Annotated[str, place_argument(metavar="URI", help="Collection written by rankwise.")],
    sources: Annotated[
        bool, typer.Option("--sources", help="Also read the sources again and compare every row with its source.")
    ] = False,
) -> None:
    """Compare every array with its checksum, and every row with the record of its source.

    Exit codes: 0 no difference, 1 a difference, 2 wrong usage.
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
    print(f"{uri} is intact" + ", and its rows match their sources" * sources)


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--genes must be a text file (UTF-8) with a name per line, {file} is not: {error}") from None
    return [line for line in lines if line]


def _start_ranks(ranks: int, out: str, inputs: list[str], options: dict[str, Any], progress: bool | None) -> None:
    from rankwise._process.place import find_place
    from rankwise.data.rows.collection.journal import clear_vain
    from rankwise.data.rows.collection.progress import watched_progress
    from rankwise.launch.functions.caller import run

    place = find_place(os.environ)
    if place.world_size > 1:
        raise ConfigError(
            f"--ranks {ranks} starts processes, but this process is already rank {place.rank} of "
            f"{place.world_size} ({place.family}): leave out --ranks"
        )
    is_new = not Path(out).exists()
    with watched_progress(Path(out), enabled=progress):
        try:
            run(_write_plainly, out, inputs, {**options, "progress": False}, num_ranks=ranks)
        except RankFailure as failure:
            if is_new:
                clear_vain(Path(out))
            raise plain_failure(failure) from failure


def _write_plainly(out: str, inputs: list[str], options: dict[str, Any]) -> None:
    """Write in a separate process, where no other code handles warnings."""
    with plain_warnings():
        _write_rank(out, inputs, options)


def _write_rank(out: str, inputs: list[str], options: dict[str, Any]) -> None:
    """Write, as the only rank or one of several."""
    from rankwise._process.place import find_place
    from rankwise.data.rows.collection.collection import DatasetCollection

    place, is_new = find_place(os.environ), not Path(out).exists()
    collection = DatasetCollection(out)
    before = set(collection.manifest["datasets"])
    try:
        collection.add_adatas(inputs, **options, world=place)
    except RankwiseError:
        if is_new and place.world_size == 1 and collection.is_empty:  # remove a new, empty collection after an error
            shutil.rmtree(collection.path, ignore_errors=True)
        raise
    if place.rank == 0:
        manifest = collection.manifest
        last = manifest["writes"][-1]
        rows = sum(manifest["datasets"][name]["rows"] for name in last["datasets"])
        again = " by an earlier call that was stopped just before its end" if before >= set(last["datasets"]) else ""
        print(f"{out}: {rows} rows written as {', '.join(last['datasets'])}, seed {last['seed']}{again}")


def plain_failure(failure: RankFailure) -> LaunchError:
    """Return a rank's failure without its traceback if it is a rankwise error, whose message says what to do."""
    lines = failure.traceback.rstrip().splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith(_OURS) and ": " in line]
    if not found:
        return failure
    said = "\n".join(lines[found[-1] :]).partition(": ")[2]
    return LaunchError(f"rank {failure.rank}: {said}")
