"""`rankwise data`: commands about stores of arrays. Each command has its own module and imports the library late."""

from __future__ import annotations

import typer

from rankwise.cli.data_audit import audit_command
from rankwise.cli.data_bench import bench_command
from rankwise.cli.data_index import EXAMPLES, index_command

__all__ = ["data_commands"]

data_commands = typer.Typer(
    name="data",
    help="Look at Zarr stores: what they hold, what reading them costs, how fast they are.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@data_commands.callback()
def _describe() -> None:
    """Look at Zarr stores: what they hold, what reading them costs, how fast they are."""


data_commands.command("audit", no_args_is_help=True)(audit_command)
data_commands.command("bench", no_args_is_help=True)(bench_command)
data_commands.command("index", no_args_is_help=True, epilog=EXAMPLES)(index_command)
