"""`rankwise checkpoint`: inspect, verify and export checkpoints. Imports the library late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.run import path_argument, place_argument

checkpoint_commands = typer.Typer(
    name="checkpoint",
    help="Show what checkpoints contain, check that they are intact, and export them for other libraries.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Place = Annotated[
    str,
    place_argument(
        metavar="PATH", help="A checkpoint, a folder of checkpoints, a run directory, or a URL of one of these."
    ),
]


@checkpoint_commands.callback()
def _describe() -> None:
    """Show what checkpoints contain, check that they are intact, and export them for other libraries."""


@checkpoint_commands.command("show", no_args_is_help=True)
def show_command(
    path: _Place, as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
) -> None:
    """Show what checkpoints contain, newest first. Reads only their manifests."""
    from rankwise.checkpoint.export import describe, text_of

    facts = describe(path)
    print(json.dumps(facts, indent=1) if as_json else "\n".join(map(text_of, facts)))


@checkpoint_commands.command("verify", no_args_is_help=True)
def verify_command(path: _Place) -> None:
    """Read checkpoints completely and compare their checksums.

    Exit codes: 0 all are intact, 1 one is damaged or cannot be read, 2 wrong usage.
    """
    from rankwise.checkpoint.export import check_all

    checked = check_all(path)
    for folder, reason in checked.items():
        print(f"{folder}: {reason or 'intact'}")
    if any(checked.values()):
        raise typer.Exit(1)


@checkpoint_commands.command("export", no_args_is_help=True)
def export_command(
    path: _Place,
    out: Annotated[Path, path_argument(metavar="OUT", help="File to write.")],
    part: Annotated[str, typer.Option(help="Name of the part of the checkpoint to export.")] = "model",
    to: Annotated[
        str | None,
        typer.Option("--format", help="File format: pt, safetensors or npz. Default: the suffix of OUT, else pt."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Export the whole state of a part, saved by any number of ranks, for torch.load, safetensors or NumPy."""
    from rankwise.checkpoint.export import FORMATS, export_part, find_one

    ending = out.suffix.lstrip(".")
    chosen = to or (ending if ending in FORMATS else "pt")
    info = find_one(path)
    num_bytes = export_part(info, out, part=part, to=chosen, force=force)  # type: ignore[arg-type]
    print(f"{out}: {part} of {info.path}, {num_bytes} bytes")
