"""The command's table of subcommands."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from typing import Annotated

import typer

from rankwise._version import __version__
from rankwise.cli.checkpoint import checkpoint_commands
from rankwise.cli.data import data_commands
from rankwise.cli.diagnosis import doctor_command, env_command, explain_command, report_command, watch_command
from rankwise.cli.lint import lint_command, rule_command
from rankwise.cli.options import announced_options
from rankwise.cli.rows import rows_commands
from rankwise.cli.run import run_command
from rankwise.cli.scripts import ScriptCommand, profile_command, scaling_command, verify_command
from rankwise.cli.slurm import cancel_command, jobs_command, logs_command

_EPILOG = (
    "Help for one command: rankwise COMMAND --help. With --json, stdout holds JSON or, after an error, nothing; errors "
    "are on stderr, with exit code 2."
)

app = typer.Typer(
    name="rankwise",
    help="Data-parallel training: start ranks, supervise them, and diagnose problems.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rankwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version  # handled by its callback


app.command(
    "run",
    # --max_restarts is accepted for --max-restarts, as by torchrun, and PET_MAX_RESTARTS sets its default
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda word: word.replace("_", "-"),
        "default_map": announced_options(os.environ),
    },
    no_args_is_help=True,
    epilog="Everything after TARGET is passed to it. The options of torchrun are accepted, too.",
)(run_command)
app.command(
    "verify",
    cls=ScriptCommand,
    no_args_is_help=True,
    epilog="Exit codes: 0 no difference, 1 a difference, 2 a run failed.",
)(verify_command)
app.command(
    "lint",
    no_args_is_help=True,
    epilog="Exit codes: 0 no findings, 1 findings, 2 a file could not be checked. Rules: rankwise rule RW101",
)(lint_command)
app.command("rule")(rule_command)
app.command(
    "env",
    epilog="The output is meant for bug reports. Known secrets are masked, but read it before you share it.",
)(env_command)
app.command(
    "doctor",
    epilog="Exit codes: 0 no check failed (warnings are not failures), 1 a check failed, 2 wrong usage.",
)(doctor_command)
app.command(
    "explain",
    no_args_is_help=True,
    epilog="Exit codes: 0 a message was recognized, 1 no message was recognized, 2 a log could not be read.",
)(explain_command)
app.command("report", no_args_is_help=True)(report_command)
app.command("watch")(watch_command)
app.command(
    "profile",
    cls=ScriptCommand,
    no_args_is_help=True,
    epilog="Exit codes: 0 the profile was written, 2 the script failed or a trace could not be read.",
)(profile_command)
app.command(
    "scaling",
    cls=ScriptCommand,
    no_args_is_help=True,
    epilog="Exit codes: 0 measured, 1 the efficiency is below --min-efficiency, 2 a run failed.",
)(scaling_command)
app.command("jobs")(jobs_command)
app.command("logs")(logs_command)
app.command("cancel")(cancel_command)
app.add_typer(data_commands, name="data")
app.add_typer(rows_commands, name="rows")
app.add_typer(checkpoint_commands, name="checkpoint")

if sys.flags.optimize > 1:  # `python -OO` drops docstrings, which are the descriptions
    for table in (app, data_commands, rows_commands, checkpoint_commands):
        for command in table.registered_commands:
            assert command.callback is not None
            (function,) = ast.parse(inspect.getsource(command.callback)).body
            command.help = ast.get_docstring(function)  # type: ignore[arg-type]  # a function
