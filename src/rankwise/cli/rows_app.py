"""`rankwise rows`: commands about AnnData stores and collections. Each imports the library late."""

from __future__ import annotations

import typer

from rankwise.cli.rows_info import info_command
from rankwise.cli.rows_verify import verify_command
from rankwise.cli.rows_write import EXAMPLES, write_command

__all__ = ["rows_commands"]

rows_commands = typer.Typer(
    name="rows",
    help="AnnData stores and collections: write them, say what they hold, check them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@rows_commands.callback()
def _describe() -> None:
    """AnnData stores and collections: write them, say what they hold, check them."""


rows_commands.command("write", no_args_is_help=True, epilog=EXAMPLES)(write_command)
rows_commands.command("info", no_args_is_help=True)(info_command)
rows_commands.command("verify", no_args_is_help=True)(verify_command)
